"""Keep one template process (which forks workers) for a launcher: start, replace and end it.

The template does not slow the job's first steps: it starts only after a worker has trained a step
and has written a file with the modules that it had imported by then.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edl import config
from edl.launch.template import Child, Template, TemplateError, TemplateRefused, why_none

logger = logging.getLogger(__name__)

FILES = "template*"  # in the directory of logs
NOT_WANTED = "nobody has asked for it"
DEATHS = 3  # after so many in a row, without a worker forked between, no other one is started


class TemplateKeeper:
    """The owner of one launcher's template process, which forks workers; it starts and replaces it.

    Args:
        command: the command of the job.
        cwd: the working directory of the job.
        environment: the variables that all workers have.
        logs: the directory for the list of imports and for what the imports print.
        wanted: whether the user wants a template.

    Attributes:
        why_none: why this launcher has no template and will not get one; empty if it may have one.
    """

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
        self.why_none = why_none(command, environment.get("PATH")) if wanted else NOT_WANTED
        given = config.take_inherited_template()
        if given is not None:
            self._template = Template.inherited(command, cwd, *given)
            if self.why_none:
                self.close()

    @property
    def imports(self) -> Path | None:
        """The file into which a worker is to write the names of the modules that it has imported.

        It is None if the list is not needed: it exists, the template runs, or there will be none.
        """
        known = self.why_none or self._template or self._imports.exists()
        return None if known else self._imports

    @property
    def pid(self) -> int | None:
        """The pid of the template process; None if there is none."""
        return self._template.pid if self._template is not None else None

    @property
    def ready(self) -> bool:
        """Whether the next worker can be forked from the template."""
        return self._template is not None and self._template.ready

    def look(self) -> None:
        """Start the template process if it does not run, else read its messages; it does not wait.

        The process starts once a worker has written its list of imports. If it has died, the next
        call may start another one, up to ``DEATHS`` times in a row.
        """
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
        """Start a worker by a fork of the template process.

        Args:
            environment: the variables of the worker.
            log: the file for the output of the worker.
            started: called with the pid of the worker before its script begins.

        Returns:
            The worker; None if the template cannot fork now, and the caller is to use ``exec``.

        Raises:
            OSError: the worker cannot be started in any way now: this process has no file
                descriptor left, or the disk has no room for the log.
        """
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
        """End the template process for good; every later worker is started by ``exec``.

        ``why`` is the reason, which ``why_none`` has from then on.
        """
        self.close()
        self.why_none = why

    def close(self) -> None:
        """End the template process; the workers that were forked from it go on."""
        if self._template is not None:
            self._template.close()
            self._template = None

    def remove_imports(self) -> None:
        """Remove the list of imports: it contains environment variables that the script set."""
        self._imports.unlink(missing_ok=True)

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
