"""A model or agent behind the Interactions API."""

from typing import Any
from urllib.parse import urlencode

from sidestream import jsontext
from sidestream.errors import RunError
from sidestream.parts import Finish
from sidestream.prices.price import Bill
from sidestream.providers import protocol
from sidestream.providers.google import catalog
from sidestream.providers.google.context import PROVIDER_NAME, TELEMETRY_NAME
from sidestream.providers.google.files import GoogleModel
from sidestream.providers.google.interactions.credentials import GoogleCredential, credential_body
from sidestream.providers.google.interactions.encode import INTERACTIONS_PORTABLE, encode_interaction
from sidestream.providers.google.interactions.options import GoogleInteractionsOptions, InteractionContext
from sidestream.providers.google.settings import INTERACTIONS_SETTINGS
from sidestream.providers.shared.continuation import SESSION_REFUSED
from sidestream.providers.shared.endpoints import Endpoint, as_segment
from sidestream.transport.calls import HttpCall

REFUSALS = (
    protocol.Refusal(
        r"(?i)previous[ _]interaction|interaction\b.*\b(not found|expired|does not exist)",
        SESSION_REFUSED,
    ),
)


UNFINISHED = frozenset({"queued", "in_progress"})
"""Statuses of an unfinished interaction."""


class InteractionsModel(GoogleModel):
    """A model or agent. A conversation continues by the id of the previous interaction."""

    provider = PROVIDER_NAME
    telemetry_name = TELEMETRY_NAME
    options_type = GoogleInteractionsOptions
    portable_settings = frozenset(INTERACTIONS_SETTINGS)
    hosted_tools = frozenset(INTERACTIONS_PORTABLE)
    price_list: str | None = catalog.PRICE_LIST

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        super().__init__(f"interactions/{name}", endpoint)
        self._model = name

    def encode(self, request: protocol.ModelRequest) -> protocol.Encoded:
        """Encode a request, and create the decoder for its response."""
        made = encode_interaction(request, self._model, self.base_url)
        return self._encoded("interactions", request, made, _decoder)

    def storage_options(
        self, options: Any, *, is_stored: bool, has_reasoning: bool
    ) -> GoogleInteractionsOptions | None:
        """Return options for the storage of an interaction."""
        return None if is_stored else GoogleInteractionsOptions(store=False)

    def bill(self, finish: Finish) -> Bill:
        """Return what a response is billed for."""
        return catalog.bill(self._model, finish)

    def recover(self, error: RunError) -> protocol.Recovery | None:
        """Return how to retry without a session that the server no longer has."""
        return protocol.Refusal.recovery_of(error, REFUSALS)

    def download(self, ref: protocol.FileRef) -> HttpCall:
        """Create the call that downloads a file of an environment, or an uploaded one."""
        if ref.container_id is None:
            return self._endpoint.call(
                f"files/{as_segment(ref.id.removeprefix('files/'))}:download?alt=media", method="GET"
            )
        path = "/".join(as_segment(part) for part in ref.id.split("/"))
        return self._endpoint.call(f"environments/{as_segment(ref.container_id)}/files/{path}?alt=media", method="GET")

    def retrieve(
        self,
        interaction_id: str,
        *,
        stream: bool = False,
        last_event_id: str | None = None,
        include_input: bool = False,
    ) -> HttpCall:
        """Create the call that fetches an interaction in its current state, or its stream after an event.

        `stream` asks for the stream, after `last_event_id` if given. `include_input` adds the input.
        """
        query: dict[str, str] = {}
        if stream:
            query["stream"] = "true"
        if last_event_id is not None:
            query["last_event_id"] = last_event_id
        if include_input:
            query["include_input"] = "true"
        path = f"interactions/{as_segment(interaction_id)}" + (f"?{urlencode(query)}" if query else "")
        return self._endpoint.call(path, method="GET", stream=stream)

    def cancel(self, interaction_id: str) -> HttpCall:
        """Create the call that cancels an interaction in the background."""
        return self._endpoint.call(f"interactions/{as_segment(interaction_id)}/cancel", b"{}")

    def delete(self, interaction_id: str) -> HttpCall:
        """Create the call that deletes a stored interaction."""
        return self._endpoint.call(f"interactions/{as_segment(interaction_id)}", method="DELETE")

    def create_credential(self, credential: GoogleCredential) -> HttpCall:
        """Create the call that stores a credential for environments. `read_credential` decodes the response."""
        return self._endpoint.call("credentials", credential_body(credential))

    def update_credential(self, credential: GoogleCredential) -> HttpCall:
        """Create the call that replaces the values of a credential."""
        return self._endpoint.call(
            f"credentials/{as_segment(credential.id)}", credential_body(credential, is_new=False), method="PATCH"
        )

    def list_credentials(self, after: str | None = None) -> HttpCall:
        """Create the call for a page of credentials, without secrets. `read_credentials` decodes the response."""
        query = f"?{urlencode({'page_token': after})}" if after else ""
        return self._endpoint.call(f"credentials{query}", method="GET")

    def delete_credential(self, credential_id: str) -> HttpCall:
        """Create the call that deletes a credential."""
        return self._endpoint.call(f"credentials/{as_segment(credential_id)}", method="DELETE")

    def resume_call(self, encoded: protocol.Encoded, decoder: protocol.Decoder) -> HttpCall | None:
        """Create the call that resumes the stream of a stored interaction, which continues without a connection."""
        from sidestream.providers.google.interactions.decode import InteractionsDecoder

        point = decoder.resume_point if isinstance(decoder, InteractionsDecoder) else None
        body = jsontext.as_object(jsontext.loads(encoded.call.body or b"{}"))
        if point is None or body.get("store") is False:
            return None
        return self._follow_up(encoded, self.retrieve(point[0], stream=True, last_event_id=point[1]))

    def under_way(self, body: bytes) -> protocol.UnderWay | None:
        """Return the queued or running interaction in a body, or None."""
        return protocol.under_way(body, UNFINISHED)

    def fetch_call(self, encoded: protocol.Encoded, answer_id: str, *, stream: bool) -> HttpCall:
        """Create the call that fetches an interaction in its current state, or its stream from the beginning."""
        return self._follow_up(encoded, self.retrieve(answer_id, stream=stream))

    def cancel_call(self, encoded: protocol.Encoded, answer_id: str) -> HttpCall:
        """Create the call that cancels an interaction in the background. Others end with their connection."""
        return self._follow_up(encoded, self.cancel(answer_id))

    def _follow_up(self, encoded: protocol.Encoded, call: HttpCall) -> HttpCall:
        """Add the headers of the original request to a call."""
        auth = self._endpoint.settings.auth
        return encoded.follow_up(call.method, call.url, auth, body=call.body, stream=call.stream)

    def decoder(self, *, store: bool = True) -> protocol.Decoder:
        """Create a decoder for an interaction that is fetched rather than created."""
        return _decoder(InteractionContext(model=self._model, base_url=self.base_url, store=store))


def _decoder(context: InteractionContext) -> protocol.Decoder:
    from sidestream.providers.google.interactions.decode import InteractionsDecoder

    return InteractionsDecoder(context)
