"""Write the HTML around the scripts of a page: of a job, of a cluster, of a report."""

from __future__ import annotations

from collections.abc import Sequence

_PAGE = """\
<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="light dark">
    <title>edl</title>
    {head}
  </head>
  <body>
    <div id="page"><p class="loading">{loading}</p></div>
    {rest}
  </body>
</html>
"""
_NO_SCRIPT = '<noscript><p class="loading">This page needs JavaScript. {instead}</p></noscript>'
_ICON = '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'
_STYLE = '<link rel="stylesheet" href="/static/{path}">'
_MODULE = '<script type="module" src="/static/{path}"></script>'


def html_page(head: Sequence[str], loading: str, rest: str = "") -> str:
    return _PAGE.format(head="\n    ".join(head), loading=loading, rest=rest)


def job_page() -> str:
    """Return the HTML of the page of a job, which loads its files from the server."""
    head = (
        _ICON,
        _STYLE.format(path="vendor/uPlot.min.css"),
        _STYLE.format(path="style.css"),
        '<script src="/static/vendor/uPlot.iife.min.js" defer></script>',
        _MODULE.format(path="main.mjs"),
    )
    instead = "<code>edl status --watch</code> shows the job in a terminal."
    return html_page(head, "Loading…", _NO_SCRIPT.format(instead=instead))


def cluster_page() -> str:
    """Return the HTML of the page of a cluster, which loads its files from the server."""
    head = _ICON, _STYLE.format(path="style.css"), _MODULE.format(path="cluster.mjs")
    instead = (
        "<code>edl list</code> and <code>edl cluster status</code> show the cluster in a terminal."
    )
    return html_page(head, "Loading…", _NO_SCRIPT.format(instead=instead))
