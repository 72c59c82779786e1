"""Charts as files: SVG and PNG, drawn without a browser."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localpolicy.errors import ConfigError
from localpolicy.runtime.files import whole_file

WIDTH = 720
MISSING = "no pictures were drawn: they need altair and vl-convert (pip install 'localpolicy[report]')."


def can_draw() -> bool:
    """Whether the extra `report` is there."""
    return all(find_spec(name) is not None for name in ("altair", "vl_convert"))


def write_picture(spec: dict[str, Any], path: Path | str, *, width: int = WIDTH) -> Path:
    """Draw a Vega-Lite spec as the file's ending says."""
    if not can_draw():
        raise ConfigError(MISSING)
    import vl_convert

    path, text = Path(path), json.dumps(_static(spec, width))
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"{path}: a picture is .svg or .png.")
    with whole_file(path) as partial:
        if path.suffix == ".svg":
            partial.write_text(vl_convert.vegalite_to_svg(text), encoding="utf-8")
        else:
            partial.write_bytes(vl_convert.vegalite_to_png(text, scale=2))
    return path


def _static(spec: dict[str, Any], width: int) -> dict[str, Any]:
    """A page's chart takes the width it is given and finds room for names by script; a file can do neither."""
    drawn: dict[str, Any] = json.loads(json.dumps(spec))
    if drawn.get("width") == "container":
        drawn["width"] = width
    drawn["config"] = {**drawn.get("config", {}), "background": "white"}
    for layer in drawn.get("layer", []):
        if layer.get("name") == "names":
            layer["mark"] |= {"align": "left", "dx": 8, "dy": -8}
    return drawn
