"""What the responses of a model cost."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sidestream.prices.price import Price
from sidestream.prices.pricing import Pricing
from sidestream.providers.protocol import BillsUsage, ChatModel
from sidestream.stream.parts import Finish

if TYPE_CHECKING:
    from sidestream.providers.embedding import EmbeddingsResult


def pricing_for(model: ChatModel, prices: Mapping[str, Price]) -> Pricing:
    """Computes costs of this model's responses, at the user's prices first."""
    if isinstance(model, BillsUsage):
        return Pricing(model.provider, model.name, price_list=model.price_list, bill=model.bill, prices=prices)
    return Pricing(model.provider, model.name, prices=prices)


def priced_embeddings(result: "EmbeddingsResult", model: ChatModel, prices: Mapping[str, Price]) -> "EmbeddingsResult":
    """Embeddings with what they cost."""
    return replace(result, usage=pricing_for(model, prices).priced(Finish("stop", result.usage)))
