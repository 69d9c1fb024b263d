"""The page that shows `/status` in a browser. It is the same for all, holds no data, and asks this address alone."""

import base64
import hashlib
from functools import cache
from pathlib import Path

from gcr.pagestyle import STYLE

_FOLDER = Path(__file__).parent


@cache
def page() -> tuple[bytes, dict[str, str]]:
    """Returns the HTML, and the headers. Their policy allows the page's own script, and requests to this address."""
    html, css, script = ((_FOLDER / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    )
    body = html.replace("/*style*/", STYLE + css).replace("/*script*/", script)
    return body.encode(), {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
