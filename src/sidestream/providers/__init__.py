"""Providers: their protocol, what all share, and a folder for each.

A custom provider implements `Provider` and `ChatModel` and is registered by `register_provider`, or by an entry point
in the group `sidestream.providers`.

The modules here may import `tools`, `messages`, `prices`, `stream` and the modules at the root of `sidestream`. Folders
of providers may import these modules too, but neither `wire` nor each other.
"""

from typing import TYPE_CHECKING

from sidestream.lazy import lazy_names

if TYPE_CHECKING:
    from sidestream.prices.price import Bill as Bill, Charge as Charge
    from sidestream.providers.capabilities import Capabilities as Capabilities
    from sidestream.providers.embedding import (
        EmbeddingCall as EmbeddingCall,
        EmbeddingsResult as EmbeddingsResult,
        EmbedsText as EmbedsText,
    )
    from sidestream.providers.model_settings import ModelSettings as ModelSettings
    from sidestream.providers.protocol import (
        BillsUsage as BillsUsage,
        BringsTransport as BringsTransport,
        ChatModel as ChatModel,
        CompactionPlan as CompactionPlan,
        CompactsHistory as CompactsHistory,
        Decoder as Decoder,
        Encoded as Encoded,
        FileRef as FileRef,
        KnowsWindow as KnowsWindow,
        ListsModels as ListsModels,
        MakesMedia as MakesMedia,
        MapsSettings as MapsSettings,
        MediaPlan as MediaPlan,
        ModelInfo as ModelInfo,
        ModelRequest as ModelRequest,
        NamedInTelemetry as NamedInTelemetry,
        NamesFiles as NamesFiles,
        Provider as Provider,
        Recovery as Recovery,
        ResumesStreams as ResumesStreams,
        Settings as Settings,
        SpeaksWebSocket as SpeaksWebSocket,
        UnderWay as UnderWay,
        WorksInBackground as WorksInBackground,
    )
    from sidestream.providers.registry import (
        ModelString as ModelString,
        caps_of as caps_of,
        find_provider as find_provider,
        providers as providers,
        register_provider as register_provider,
    )
    from sidestream.providers.transfers import (
        FileAddress as FileAddress,
        Pause as Pause,
        Request as Request,
        StoredFile as StoredFile,
        Transfer as Transfer,
        TransfersFiles as TransfersFiles,
        Upload as Upload,
    )
    from sidestream.transport.calls import (
        FileBody as FileBody,
        FrameHead as FrameHead,
        HttpCall as HttpCall,
        HttpResponse as HttpResponse,
        LaneFailure as LaneFailure,
        OpensHttp as OpensHttp,
        SocketCodec as SocketCodec,
        Transport as Transport,
    )

__all__, __getattr__, __dir__ = lazy_names(  # pyright: ignore[reportUnsupportedDunderAll]
    __name__,
    {
        "prices.price": "Bill Charge",
        "transport.calls": "FileBody FrameHead HttpCall HttpResponse LaneFailure OpensHttp SocketCodec Transport",
        "providers.capabilities": "Capabilities",
        "providers.embedding": "EmbeddingCall EmbeddingsResult EmbedsText",
        "providers.model_settings": "ModelSettings",
        "providers.protocol": (
            "BillsUsage BringsTransport ChatModel CompactionPlan CompactsHistory Decoder Encoded FileRef KnowsWindow "
            "ListsModels MakesMedia MapsSettings MediaPlan ModelInfo ModelRequest NamedInTelemetry NamesFiles Provider "
            "Recovery ResumesStreams Settings SpeaksWebSocket UnderWay WorksInBackground "
        ),
        "providers.registry": "ModelString caps_of find_provider providers register_provider",
        "providers.transfers": "FileAddress Pause Request StoredFile Transfer TransfersFiles Upload",
    },
)
