"""Refuse a cluster whose records have a format that this edl does not read and write.

The node of the cluster names the format, and the version of edl that has written it. A controller
of another format does not lead, a host of another one starts and ends nothing, and a client of
another one changes nothing: so none of them can harm what the others have written.
"""

from __future__ import annotations

from importlib import metadata

from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.nodes import record
from edl.coordination.reads import OnChange, get
from edl.core.cluster.records import FORMAT, ClusterRecord
from edl.errors import UnsupportedFormat


def own_version() -> str:
    """Return the version of this edl."""
    return metadata.version("edl-horovod")


def check_format(nodes: ClusterNodes, wake: OnChange = None) -> None:
    """Raise an error if the records of a cluster have another format than this edl's."""
    path = nodes.paths.cluster
    answer = nodes.read(get(path, wake))[0]
    if answer is None:
        raise nodes.unknown()
    check_settings(nodes.paths.name, record(ClusterRecord, (path, answer[0])))


def check_settings(cluster: str, settings: ClusterRecord) -> None:
    """Raise UnsupportedFormat if the `settings` of `cluster` have another format than ours."""
    if settings.format == FORMAT:
        return
    by = f", which edl {settings.version} writes" if settings.version else ""
    what = f"edl {settings.version}" if settings.version else "the version of edl that runs there"
    raise UnsupportedFormat(
        f"cluster {cluster} has records of format {settings.format}{by}, and this edl "
        f"{own_version()} reads and writes format {FORMAT}; install {what}"
    )
