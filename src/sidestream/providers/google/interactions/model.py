"""A model, or an agent, behind the Interactions API."""

import re
from urllib.parse import urlencode

from sidestream import jsontext
from sidestream.errors import RunError
from sidestream.prices.price import Bill
from sidestream.providers import protocol
from sidestream.providers.google import catalog
from sidestream.providers.google.context import PROVIDER_NAME, TELEMETRY_NAME
from sidestream.providers.google.files import GoogleModel
from sidestream.providers.google.interactions.context import InteractionContext
from sidestream.providers.google.interactions.credentials import GoogleCredential, credential_body
from sidestream.providers.google.interactions.encode import INTERACTIONS_PORTABLE, encode_interaction
from sidestream.providers.google.interactions.options import GoogleInteractionsOptions
from sidestream.providers.google.settings import INTERACTIONS_SETTINGS
from sidestream.providers.shared.continuation import SESSION_REFUSED
from sidestream.providers.shared.endpoints import Endpoint, as_segment
from sidestream.stream.parts import Finish
from sidestream.transport.calls import HttpCall

REFUSALS = (
    protocol.Refusal(
        re.compile(r"previous[ _]interaction|interaction\b.*\b(not found|expired|does not exist)", re.IGNORECASE),
        SESSION_REFUSED,
    ),
)


UNFINISHED = frozenset({"queued", "in_progress"})
"""Statuses of an interaction that is in progress."""


class InteractionsModel(GoogleModel):
    """One model or agent. A conversation continues by the id of the previous interaction."""

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
        """The request on the wire, and the decoder for its response."""
        made = encode_interaction(request, self._model, self.base_url)
        return self._encoded("interactions", request, made, _decoder)

    def bill(self, finish: Finish) -> Bill:
        """What a response is billed for."""
        return catalog.bill(self._model, finish)

    def recover(self, error: RunError) -> protocol.Recovery | None:
        """Retries without a session that the server no longer has."""
        return protocol.Refusal.recovery_of(error, REFUSALS)

    def download(self, ref: protocol.FileRef) -> HttpCall:
        """Downloads a file of an environment, or an uploaded one."""
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
        """Requests an interaction in its current state, or its stream, after an event if one is given."""
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
        """Cancels an interaction that runs in the background."""
        return self._endpoint.call(f"interactions/{as_segment(interaction_id)}/cancel", b"{}")

    def delete(self, interaction_id: str) -> HttpCall:
        """Deletes a stored interaction."""
        return self._endpoint.call(f"interactions/{as_segment(interaction_id)}", method="DELETE")

    def create_credential(self, credential: GoogleCredential) -> HttpCall:
        """Stores a credential for environments; `read_credential` reads the response."""
        return self._endpoint.call("credentials", credential_body(credential))

    def update_credential(self, credential: GoogleCredential) -> HttpCall:
        """Replaces the values of a credential."""
        return self._endpoint.call(
            f"credentials/{as_segment(credential.id)}", credential_body(credential, is_new=False), method="PATCH"
        )

    def list_credentials(self, after: str | None = None) -> HttpCall:
        """Requests a page of credentials, without their secrets; `read_credentials` reads the response."""
        query = f"?{urlencode({'page_token': after})}" if after else ""
        return self._endpoint.call(f"credentials{query}", method="GET")

    def delete_credential(self, credential_id: str) -> HttpCall:
        """Deletes a credential."""
        return self._endpoint.call(f"credentials/{as_segment(credential_id)}", method="DELETE")

    def resume_call(self, encoded: protocol.Encoded, decoder: protocol.Decoder) -> HttpCall | None:
        """Resumes the stream of a stored interaction, which continues without a connection, after the last event."""
        from sidestream.providers.google.interactions.decode import InteractionsDecoder

        point = decoder.resume_point if isinstance(decoder, InteractionsDecoder) else None
        body = jsontext.as_object(jsontext.loads(encoded.call.body or b"{}"))
        if point is None or body.get("store") is False:
            return None
        return self._follow_up(encoded, self.retrieve(point[0], stream=True, last_event_id=point[1]))

    def under_way(self, body: bytes) -> protocol.UnderWay | None:
        """An interaction that is queued or in progress."""
        return protocol.under_way(body, UNFINISHED)

    def fetch_call(self, encoded: protocol.Encoded, answer_id: str, *, stream: bool) -> HttpCall:
        """Requests an interaction in its current state, or its stream from the beginning."""
        return self._follow_up(encoded, self.retrieve(answer_id, stream=stream))

    def cancel_call(self, encoded: protocol.Encoded, answer_id: str) -> HttpCall:
        """Cancels an interaction that runs in the background; others end with their connection."""
        return self._follow_up(encoded, self.cancel(answer_id))

    def _follow_up(self, encoded: protocol.Encoded, call: HttpCall) -> HttpCall:
        """The call, with the headers of the original request."""
        auth = self._endpoint.settings.auth
        return encoded.follow_up(call.method, call.url, auth, body=call.body, stream=call.stream)

    def decoder(self, *, store: bool = True) -> protocol.Decoder:
        """A decoder for an interaction that is fetched rather than created."""
        return _decoder(InteractionContext(model=self._model, base_url=self.base_url, store=store))


def _decoder(context: InteractionContext) -> protocol.Decoder:
    from sidestream.providers.google.interactions.decode import InteractionsDecoder

    return InteractionsDecoder(context)
