"""Keep one template process (which forks workers) for a launcher: start, replace and end it.

It starts only after a worker has trained a step and has written which modules it had imported by
then, so as not to slow the job's first steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edl import config
from edl.host.template import Child, Template, TemplateError, TemplateRefused, why_none

logger = logging.getLogger(__name__)

FILES = "template*"  # in the directory of logs
NOT_WANTED = "nobody has asked for it"
DEATHS = 3  # after so many in a row, without a worker forked between, no other one is started


class TemplateKeeper:
    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        logs: Path,
        wanted: bool,
    ) -> None:
        self._command, self._cwd, self._environment = command, cwd, environment
        of_run = repr((tuple(command), str(cwd), environment.get("EDL_SECRET")))
        digest = hashlib.sha256(of_run.encode()).hexdigest()[:12]  # logs may be of several runs
        self._imports, self._output = logs / f"template-{digest}.imports", logs / "template.output"
        self._template: Template | None = None
        self._deaths = 0
        # empty: there may be one
        self.why_none = why_none(command, environment.get("PATH")) if wanted else NOT_WANTED
        given = config.take_inherited_template()
        if given is not None:
            self._template = Template.inherited(command, cwd, *given)
            if self.why_none:
                self.close()

    @property
    def imports(self) -> Path | None:
        """The file for a worker to write its imported modules into; None: not needed."""
        known = self.why_none or self._template or self._imports.exists()
        return None if known else self._imports

    @property
    def pid(self) -> int | None:
        return self._template.pid if self._template is not None else None

    @property
    def ready(self) -> bool:
        return self._template is not None and self._template.ready

    def look(self) -> None:
        """Start the template if there is none, else read a message; none after `DEATHS`."""
        if self.why_none:
            return
        try:
            if self._template is None:
                self._start()
            else:
                self._template.look()
        except (TemplateError, OSError) as error:
            self._ended(error)

    def fork(
        self, environment: Mapping[str, str], log: Path, started: Callable[[int], None]
    ) -> Child | None:
        """Fork a worker; None: no template is ready or answers, nothing was started: use exec."""
        if self._template is None or not self._template.ready:
            return None
        try:
            child = self._template.fork(environment, log, started)
        except TemplateError as error:
            self._ended(error)
            return None
        self._deaths = 0
        return child

    def disable(self, why: str) -> None:
        self.close()
        self.why_none = why

    def close(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None

    def remove_imports(self) -> None:
        """Remove the file with the list of imports: it has environment variables of the script."""
        with contextlib.suppress(OSError):
            self._imports.unlink()

    def _start(self) -> None:
        if self._imports.exists():
            self._template = Template(
                self._command, self._cwd, self._environment, self._imports, self._output
            )

    def _ended(self, error: Exception) -> None:
        logger.info("the template has ended: %s", error)
        self.close()
        self._deaths += 1
        if isinstance(error, TemplateRefused) or self._deaths >= DEATHS:
            self.disable(str(error))
