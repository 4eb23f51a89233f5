"""Say each command of `edl` once: its name, its place in the help, what it calls, its examples.

The module imports no command, so that the help and the completion of a shell need not either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Verb:
    name: str  # as it is typed
    calls: str  # "module:function", in edl.cli; of a group ""
    summary: str = ""  # its line in the help of `edl`, at most 60 characters
    examples: tuple[str, ...] = ()  # "what to type  # what it does"
    parser: str = ""  # "module:class" of typer's command; "": the usual one
    settings: Mapping[str, Any] = field(default_factory=dict)  # of typer's context
    was: str = ""  # its name in older versions, which works for one release more
    help: str = ""  # of a group; a function has its own
    verbs: tuple[Verb, ...] = ()  # of a group

    def epilog(self) -> str | None:
        if not self.examples:
            return None
        pairs = (one.split("  # ") for one in self.examples)
        # The backspace tells typer to leave the lines as they are.
        return "\b\nExamples:\n" + "\n".join(f"  {typed}\n      {what}" for typed, what in pairs)


# fmt: off
LISTED: Mapping[str, tuple[Verb, ...]] = {  # by the titles of the help, in its order
    "Run": (
        Verb("run", "agents:run", "Train a command with workers that may come and go.", (
            ("edl run -np 2 --max-np 4 --job digits python train.py  "
             "# 2 workers, which may become 4"),
            ("edl run -np 2 --resume=auto python train.py  "
             "# go on from the newest checkpoint, if any"),
            ("edl run --or-join --job digits -np 4 --secret-file secret python train.py  "
             "# the same command on all hosts, which share EDL_ZOOKEEPER"),
        # what follows the first word that is no option belongs to the user's command
        ), parser="agents:RunCommand", settings={"allow_interspersed_args": False}),
        Verb("join", "agents:join", "Offer this host's slots to a job.", (
            "edl join --job digits --slots 4  # 4 more workers fit on this host",
        ), parser="agents:AgentCommand"),
        Verb("submit", "jobs:submit", "Submit a job to a cluster.", (
            "edl submit job.yaml  # return at once",
            "edl submit job.yaml --watch  # show its place in the queue until it trains",
        )),
        Verb("resume", "jobs:resume", "Let a halted job of a cluster go on.",
             ("edl resume digits  # queue it again",)),
    ),
    "Look": (
        Verb("list", "jobs:list_jobs", "List all jobs, with progress and time left.", (
            "edl list  # the jobs of the cluster, or of `edl run`",
            "edl list --state failed  # only those that have failed",
            "edl list --cluster ''  # those of `edl run` where a cluster is known",
        )),
        Verb("top", "status:top", "Show jobs of edl run on the whole terminal.", (
            "edl top  # all jobs of `edl run`",
            "edl top digits  # one job: progress, workers, newest events",
        )),
        Verb("status", "status:status", "Show who leads, who trains, how far the job is.", (
            "edl status  # the job that runs",
            "edl status digits --watch  # again and again, until it ends",
            "edl status digits --json  # for programs",
        )),
        Verb("dashboard", "dashboard:dashboard", "Show a job or a cluster in a browser.", (
            "edl dashboard digits  # prints the address to open in a browser",
            "edl dashboard --cluster main  # the cluster, and each of its jobs",
            "edl dashboard digits --port 0  # at any free port",
            "edl dashboard digits --actions  # with buttons that change the job",
        )),
        Verb("report", "status:report", "Write a job's page into one file.", (
            "edl report digits  # into digits.html",
            "edl report digits -o ticket.html  # for whoever is to look at it",
        )),
        Verb("events", "events:events", "Show what has happened, and why.", (
            "edl events digits  # since its start",
            "edl events digits --follow  # and go on until it ends",
            "edl events --explain worker_failed  # what that means, and what to do",
        )),
        Verb("logs", "logs:logs", "Show what the workers have printed.", (
            "edl logs digits  # all workers on this host",
            "edl logs digits w3 --follow  # one worker, and go on",
            "edl logs digits --previous  # the run before",
        )),
        Verb("wait", "jobs:wait", "Wait until a job of a cluster has ended.",
             ("edl wait digits && python evaluate.py  # evaluate what was trained to its end",)),
        Verb("show", "jobs:show", "Show all that is known of a job of a cluster.",
             ("edl show digits  # state, slots, manifest, history",)),
        Verb("history", "dashboard:history", "Show jobs of a cluster, also old ones.",
             ("edl history  # the jobs of the cluster, also those that are deleted",)),
        Verb("hints", "jobs:hints", "Show how fast a job trains, for schedulers.",
             ("edl hints digits --json  # for another scheduler",)),
        Verb("checkpoint", "", "List checkpoints, look into one, take the model out.",
             help="The checkpoints of a job: list them, look into one, take out the weights.",
             verbs=(
            Verb("list", "checkpoint:list_",
                 examples=("edl checkpoint list checkpoints/  # the highest step first",)),
            Verb("show", "checkpoint:show",
                 examples=("edl checkpoint show checkpoints/  # the newest one",)),
            Verb("export", "checkpoint:export", examples=(
                ("edl checkpoint export checkpoints/ model.safetensors  "
                 "# the model of the newest one"),
            )),
        )),
    ),
    "Change": (
        Verb("scale", "changes:scale", "Change the number of workers.",
             ("edl scale digits --np 4  # grow or shrink to 4 workers",)),
        Verb("migrate", "changes:migrate", "Move workers to another host.",
             ("edl migrate digits --from a --to b  # move the workers of host a to host b",)),
        Verb("drain", "changes:drain", "Let a worker or a host leave.", (
            "edl drain digits w3  # worker w3 leaves",
            "edl drain digits --host b  # host b leaves with all its workers",
        )),
        Verb("undrain", "jobs:undrain", "Let a drained host have jobs again.",
             ("edl undrain b  # host b may have jobs again",)),
        Verb("policy", "sizing:policy", "Let a job find its own number of workers.", (
            "edl policy set policy.toml digits  # this file decides from now on",
            "edl policy explain digits  # what it has measured, and what it wants",
        )),
        Verb("profile", "sizing:profile", "Measure a job at other numbers of workers.",
             ("edl profile digits --np 1..4  # measure it with 4, 3, 2 and 1 workers",)),
        Verb("borrow", "changes:borrow", "Lend a job idle slots of its hosts.",
             ("edl borrow digits --slots 2  # 2 more workers, in idle slots",), was="lend"),
        Verb("reclaim", "changes:reclaim", "Take borrowed slots back.",
             ("edl reclaim digits --slots 2  # take 2 of them back",)),
        Verb("priority", "jobs:priority", "Change the priority of a job of a cluster.", (
            "edl priority digits 5  # jobs of a higher priority come first",
        ), settings={"ignore_unknown_options": True}),  # a negative priority is no option
        Verb("stop", "changes:stop", "End a job after the step that runs.",
             ("edl stop digits  # end it after the step that runs",)),
        Verb("preempt", "changes:preempt",
             "Save a job within a bound and end it, to go on elsewhere.", (
            "edl preempt digits  # save and end it within 30 s",
            "edl preempt digits --within 2m  # a large model takes longer to save",
        )),
        Verb("halt", "jobs:halt", "Let a job of a cluster save and give its slots back.",
             ("edl halt digits  # save, and give the slots to others",)),
        Verb("delete", "changes:delete", "Remove ended jobs from ZooKeeper.",
             ("edl delete digits  # its records and events",)),
    ),
    "Repair": (
        Verb("doctor", "machine:doctor", "Check whether edl can run on this machine.",
             ("edl doctor  # one line for each check",)),
        Verb("build-horovod", "machine:build_horovod",
             "Build Horovod for today's PyTorch and TensorFlow.",
             ("edl build-horovod  # into this Python environment",)),
        Verb("chaos", "chaos:chaos", "Kill, freeze or cut off workers, to see what follows.", (
            "edl chaos digits --kill leader@step=40  # once, at that step",
            "edl chaos digits --kill worker --every 5s --duration 2m  # again and again",
        )),
    ),
    "Set up": (
        Verb("zookeeper", "", "Start and stop a ZooKeeper of this user.",
             help="A ZooKeeper of this user: for jobs on this machine, or with an address for "
                  "several.",
             verbs=(
            Verb("start", "machine:start_zookeeper", examples=(
                "edl zookeeper start  # for jobs on this machine",
                "edl zookeeper start --address 10.1.0.7 --port 2181  # for several hosts",
            )),
            Verb("stop", "machine:stop_zookeeper",
                 examples=("edl zookeeper stop  # the local one",)),
            Verb("status", "machine:zookeeper_status",
                 examples=("edl zookeeper status  # whether it runs, and where",)),
        )),
        Verb("cluster", "", "Share hosts among elastic jobs.",
             help="A cluster shares hosts among elastic jobs.", verbs=(
            Verb("api", "cluster:serve_api",
                 examples=("edl cluster api 8080  # serve the cluster over HTTP",)),
            Verb("token", "cluster:token",
                 examples=("edl cluster token  # for requests over HTTP",)),
            Verb("start", "cluster:start",
                 examples=("edl cluster start  # a controller on this machine",)),
            Verb("status", "cluster:status",
                 examples=("edl cluster status  # hosts, slots, queues",)),
            Verb("plan", "cluster:plan",
                 examples=("edl cluster plan  # which job would get what now, and why",)),
            Verb("what-if", "cluster:what_if",
                 examples=("edl cluster what-if --add-host 2  # with one more host of 2 slots",)),
            Verb("policy", "cluster:policy",
                 examples=("edl cluster policy  # which one decides now",)),
        )),
        Verb("host", "host:host", "Offer this machine to a cluster.",
             ("edl host --slots 4  # 4 workers fit on this machine",)),
        Verb("queue", "", "Queues of a cluster, with guaranteed slots.",
             help="Queues of a cluster, each with guaranteed slots and a share of the others.",
             verbs=(
            Verb("set", "administration:set_queue",
                 examples=("edl queue set night --quota 4  # 4 slots are guaranteed to its jobs",)),
            Verb("list", "administration:list_queues",
                 examples=("edl queue list  # with what each has and what waits",)),
            Verb("delete", "administration:delete_queue",
                 examples=("edl queue delete night  # if it has no jobs any more",)),
        )),
        Verb("tenant", "", "Tenants of a cluster, who have jobs of their own.",
             help="Tenants of a cluster, who may submit, see and steer own jobs only.", verbs=(
            Verb("create", "administration:create_tenant",
                 examples=("edl tenant create ann  # writes a file with her secret",)),
            Verb("list", "administration:list_tenants",
                 examples=("edl tenant list  # their names",)),
            Verb("delete", "administration:delete_tenant",
                 examples=("edl tenant delete ann  # she can submit no more",)),
        )),
        Verb("secret", "", "Secrets that the jobs of a cluster read.",
             help="Secrets of a cluster, which its jobs read by their names.", verbs=(
            Verb("set", "administration:set_secret",
                 examples=("edl secret set TOKEN < token.txt  # jobs read it by its name",)),
            Verb("list", "administration:list_secrets",
                 examples=("edl secret list  # the names only",)),
            Verb("delete", "administration:delete_secret",
                 examples=("edl secret delete TOKEN  # no job can read it any more",)),
        )),
        Verb("agent", "agents:agent", "Keep the workers of a job on this host, for programs.", (
            "edl agent --job digits --run TOKEN --json  # as a program starts it on each host",
        ), parser="agents:AgentCommand"),
        Verb("simulate", "simulate:simulate", "Simulate many jobs on one cluster.", (
            "edl simulate --list  # the columns of a trace, and the policies",
            "edl simulate --trace jobs.csv --policy edl,fifo  # two policies beside each other",
        )),
        Verb("completion", "machine:completion",
             "Let the shell complete commands and jobs at Tab.", (
            'eval "$(edl completion bash)"  # in ~/.bashrc; zsh likewise in ~/.zshrc',
            "edl completion fish > ~/.config/fish/completions/edl.fish  # for fish",
        )),
    ),
}
# fmt: on
VERBS: Mapping[str, Verb] = {verb.name: verb for verbs in LISTED.values() for verb in verbs}
REMOVED: Mapping[str, str] = {  # verbs of older versions -> what to do instead
    "explain": "`edl events --explain EVENT` says what an event means, why, and what to do",
    "leader": "`edl status` names the leader, with its host and process",
    "timeline": "Perfetto opens the timeline of each ring: FILE.g1.json and so on",
}


def every_verb() -> Iterator[tuple[str, Verb]]:
    """Yield each command with what is typed for it after `edl`: "scale", "queue set"."""
    for name, verb in VERBS.items():
        if verb.calls:
            yield name, verb
        for one in verb.verbs:
            yield f"{name} {one.name}", one
