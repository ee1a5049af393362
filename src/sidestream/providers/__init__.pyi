"""Public names for type checkers. At run time `__init__.py` loads each on first use."""

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
from sidestream.providers.shared.endpoints import aws_sigv4 as aws_sigv4, google_token as google_token
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
    Auth as Auth,
    FileBody as FileBody,
    FrameHead as FrameHead,
    HttpCall as HttpCall,
    HttpResponse as HttpResponse,
    LaneFailure as LaneFailure,
    OpensHttp as OpensHttp,
    SocketCodec as SocketCodec,
    Transport as Transport,
)
