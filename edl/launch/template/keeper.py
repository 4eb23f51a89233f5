"""Keeps one template for a launcher: started when it can be, replaced when it dies, ended with it.

The template costs the job's first steps nothing: it starts when a worker has trained one, and has
written down what it had imported by then.
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
    """The template of one launcher, if it can have one.

    Args:
        command: of the job.
        cwd: its working directory.
        environment: of the workers, besides what each has of its own.
        logs: the directory for the list of imports and for what they print.
        wanted: whether the user wants a template.

    Attributes:
        why_none: why this launcher has no template and will have none; empty: it may have one.
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
        """Where a worker is to write down what it has imported; None: nobody needs to know."""
        known = self.why_none or self._template or self._imports.exists()
        return None if known else self._imports

    @property
    def pid(self) -> int | None:
        """The template process, if there is one."""
        return self._template.pid if self._template is not None else None

    @property
    def ready(self) -> bool:
        """Whether the next worker can be forked."""
        return self._template is not None and self._template.ready

    def look(self) -> None:
        """Start the template when it can be started, and hear of it; does not wait."""
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
        """Start a worker from the template, as :meth:`Template.fork` does; None: by exec.

        Raises:
            OSError: the worker cannot be started now, in no way.
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
        """Start all workers by exec from now on."""
        self.close()
        self.why_none = why

    def close(self) -> None:
        """End the template; the workers that were forked from it go on."""
        if self._template is not None:
            self._template.close()
            self._template = None

    def remove_imports(self) -> None:
        """Remove the list of imports: it has variables in it that the script has set."""
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
