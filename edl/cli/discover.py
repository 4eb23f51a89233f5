"""`edl-discover`: print hosts and slots for `horovodrun --host-discovery-script`.

horovodrun's driver runs it once a second, so :func:`main` imports nothing else for an answer that
is as before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edl.host.horovodrun.last_answer import keep_answer, last_answer


def main() -> None:
    answer = last_answer(sys.argv[1:])
    if answer is not None:
        print(answer)
        return
    from edl.errors import EdlError

    try:
        print("\n".join(discover(sys.argv[1:])))
    except (EdlError, OSError) as error:
        print(f"edl-discover: {error}", file=sys.stderr)
        sys.exit(2)


def discover(arguments: Sequence[str]) -> list[str]:
    # A line says how many workers horovodrun shall start on a host: as many as the job wants, and
    # before there is a job as horovodrun's -np says. With --file, or outside of horovodrun, it is
    # the number that is given. The answer is stored for the next call.
    import argparse
    from pathlib import Path

    from edl import config
    from edl.errors import UsageError
    from edl.host.devices import lines, parse_hosts
    from edl.host.horovodrun.discovery import desired_hosts, is_local, read_hosts

    options = argparse.ArgumentParser(
        prog="edl-discover",
        description="Print HOST:SLOTS for the driver of horovodrun: as many workers as the job "
        "wants, -np at first, then what `edl scale` says.",
    )
    options.add_argument(
        "hosts",
        nargs="*",
        metavar="HOST:SLOTS",
        help="What may be used. Default: EDL_HOSTS, else --max-np slots on this machine.",
    )
    options.add_argument(
        "--file", type=Path, help="Print what this file says, a host a line, and nothing else."
    )
    given = options.parse_args(arguments)
    if given.file is not None and given.hosts:
        raise UsageError("give hosts or --file, not both")
    if given.file is not None:
        wanted = parse_hosts(read_hosts(given.file))
        return lines(wanted, {host: is_local(host) for host in wanted})
    settings = config.load()
    offered = parse_hosts(given.hosts or settings.hosts.replace(",", " ").split())
    wanted = dict(desired_hosts(offered, settings, config.state_dir()))
    answer = lines(wanted, {host: is_local(host) for host in wanted})
    keep_answer(arguments, wanted, "\n".join(answer))
    return answer


if __name__ == "__main__":
    main()
