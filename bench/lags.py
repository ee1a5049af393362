"""Statistics of how late events were read."""


def lag_figures(lags_us: list[int]) -> dict[str, float]:
    """Return the number of events and the percentiles of their lags. Sorts the list.

    Raises ValueError if there were no events.
    """
    if not lags_us:
        raise ValueError("no event was seen")
    lags_us.sort()
    return {
        "events": len(lags_us),
        "lag_p50_ms": lags_us[len(lags_us) // 2] / 1000,
        "lag_p99_ms": lags_us[len(lags_us) * 99 // 100] / 1000,
    }
