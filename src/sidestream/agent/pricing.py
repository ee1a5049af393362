"""What the responses of a model cost."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from sidestream.prices.price import Price
from sidestream.prices.pricing import Pricing
from sidestream.providers.protocol import ChatModel
from sidestream.stream.parts import Finish

if TYPE_CHECKING:
    from sidestream.providers.embedding import EmbeddingsResult
    from sidestream.providers.protocol import BillsUsage


def pricing_for(model: ChatModel, prices: Mapping[str, Price]) -> Pricing:
    """Computes costs of this model's responses, at the user's prices first."""
    # Not by `isinstance`: with a protocol it takes longer than the rest of what a run sets up.
    if not hasattr(model, "bill") or not hasattr(model, "price_list"):
        return Pricing(model.provider, model.name, prices=prices)
    billed = cast("BillsUsage", model)
    return Pricing(model.provider, model.name, price_list=billed.price_list, bill=billed.bill, prices=prices)


def priced_embeddings(result: "EmbeddingsResult", model: ChatModel, prices: Mapping[str, Price]) -> "EmbeddingsResult":
    """Embeddings with what they cost."""
    return replace(result, usage=pricing_for(model, prices).priced(Finish("stop", result.usage)))
