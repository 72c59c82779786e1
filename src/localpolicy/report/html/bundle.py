"""The charting library as one script (extra `report`). The page contains it, so it needs no network."""

from __future__ import annotations

from functools import cache

import altair as alt
import vl_convert


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed, in the version that Altair writes for, if it is bundled."""
    wanted = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    version = wanted if wanted in vl_convert.get_vegalite_versions() else None
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))
