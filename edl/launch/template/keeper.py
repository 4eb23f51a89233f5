"""Keeps one template for a launcher: started when it can be, replaced when it dies, ended with it.

The template costs the job's first steps nothing: it starts when a worker has trained one, and has
written down what it had imported by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edl import config
from edl.launch.template import Child, Template, TemplateError, why_none

logger = logging.getLogger(__name__)

FILES = "template.*"  # in the directory of logs
DEATHS = 3  # after so many no other template is started

Start = Callable[[Mapping[str, str], Path, Callable[[int], None]], Child]


class TemplateKeeper:
    """The template of one launcher, if it can have one.

    Args:
        command: of the job.
        cwd: its working directory.
        environment: of the workers, besides what each has of its own.
        logs: the directory for the list of imports and for what they print.
        wanted: whether the user wants a template.
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
        self._logs = logs
        self._template: Template | None = None
        self._deaths = 0
        self._why_none = why_none(command, environment.get("PATH")) if wanted else "not wanted"
        given = config.take_inherited_template()
        if given is not None and not self._why_none:
            self._template = Template.inherited(command, cwd, *given)
        self._said = not wanted

    @property
    def imports(self) -> Path | None:
        """Where a worker is to write down what it has imported; None: nobody needs to know."""
        path = self._logs / "template.imports"
        return None if self._why_none or self._template or path.exists() else path

    @property
    def pid(self) -> int | None:
        """The template process, if there is one."""
        return self._template.pid if self._template is not None else None

    @property
    def ready(self) -> bool:
        """Whether the next worker can be forked."""
        return self._template is not None and self._template.ready

    def look(self) -> str:
        """Start the template when it can be started, and hear of it; does not wait.

        Returns:
            Why this launcher has no template, once it is known; empty at all other times.
        """
        if not self._why_none:
            try:
                if self._template is None:
                    self._start()
                else:
                    self._template.look()
            except (TemplateError, OSError) as error:
                self._ended(error)
        if self._said or not self._why_none:
            return ""
        self._said = True
        return self._why_none

    def fork(
        self, environment: Mapping[str, str], log: Path, started: Callable[[int], None]
    ) -> Child | None:
        """Start a worker from the template, as :meth:`Template.fork` does; None: by exec."""
        if self._template is None or not self._template.ready:
            return None
        try:
            return self._template.fork(environment, log, started)
        except (TemplateError, OSError) as error:
            self._ended(error)
            return None

    def close(self) -> None:
        """End the template; the workers that were forked from it go on."""
        if self._template is not None:
            self._template.close()
            self._template = None

    def _start(self) -> None:
        imports = self._logs / "template.imports"
        if imports.exists():
            self._template = Template(
                self._command, self._cwd, self._environment, imports, self._logs / "template.output"
            )

    def _ended(self, error: Exception) -> None:
        logger.info("the template has ended: %s", error)
        was_ready = self._template is not None and self._template.ready
        self.close()
        self._deaths += 1
        if not was_ready or self._deaths >= DEATHS:
            self._why_none = str(error)
