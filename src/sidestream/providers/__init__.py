"""Model providers: the protocol that they implement, shared code, and one folder per provider.

A custom provider implements `Provider` and `ChatModel`. Register it with `register_provider`, or by an entry point in
the group `sidestream.providers`.

The modules here may import `tools`, `messages`, `prices`, `stream` and the modules at the root of `sidestream`.
Provider folders may import these modules too, but neither `wire` nor each other.
"""

from sidestream.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "prices.price": "Bill Charge",
        "transport.calls": "Auth FileBody FrameHead HttpCall HttpResponse LaneFailure OpensHttp SocketCodec Transport",
        "providers.capabilities": "Capabilities",
        "providers.embedding": "EmbeddingCall EmbeddingsResult EmbedsText",
        "providers.model_settings": "ModelSettings",
        "providers.protocol": (
            "BillsUsage BringsTransport ChatModel CompactionPlan CompactsHistory Decoder Encoded FileRef KnowsWindow "
            "ListsModels MakesMedia MapsSettings MediaPlan ModelInfo ModelRequest NamedInTelemetry NamesFiles Provider "
            "Recovery ResumesStreams Settings SpeaksWebSocket UnderWay WorksInBackground "
        ),
        "providers.registry": "ModelString caps_of find_provider providers register_provider",
        "providers.shared.endpoints": "aws_sigv4 google_token",
        "providers.transfers": "FileAddress Pause Request StoredFile Transfer TransfersFiles Upload",
    },
)
