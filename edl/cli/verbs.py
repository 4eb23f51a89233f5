"""Group the commands of `edl` for its help, and give an example of each.

The module imports nothing, so that the help and the completion of a shell need not import any
command. :data:`GROUPS` has each command once; :data:`SUMMARIES` has a line for each, and
:data:`EXAMPLES` has examples for each command and each command of a group of commands.
"""

from __future__ import annotations

from collections.abc import Mapping

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Run": ("run", "join", "submit", "resume"),
    "Look": (
        *(
            "list",
            "top",
            "status",
            "dashboard",
            "report",
            "events",
            "explain",
            "timeline",
            "logs",
            "leader",
            "wait",
            "show",
        ),
        *("history", "hints", "checkpoint"),
    ),
    "Change": (
        *("scale", "migrate", "drain", "undrain", "policy", "profile", "borrow", "reclaim"),
        *("priority", "stop", "preempt", "halt", "delete"),
    ),
    "Repair": ("doctor", "build-horovod", "chaos"),
    "Set up": (
        *("zookeeper", "cluster", "host", "queue", "tenant", "secret", "agent", "simulate"),
        "completion",
    ),
}
"""The titles of the help -> the names of the commands, in the order to show."""

SUMMARIES: Mapping[str, str] = {
    "run": "Train a command with workers that may come and go.",
    "join": "Offer this host's slots to a job.",
    "submit": "Submit a job to a cluster.",
    "resume": "Let a halted job of a cluster go on.",
    "list": "List all jobs, with progress and time left.",
    "top": "Show jobs of edl run on the whole terminal.",
    "status": "Show who leads, who trains, how far the job is.",
    "dashboard": "Show a job or a cluster in a browser.",
    "report": "Write a job's page into one file.",
    "events": "Show what has happened, and why.",
    "explain": "Say what an event means, and what to do.",
    "timeline": "Merge the Horovod timelines of a job into one file.",
    "logs": "Show what the workers have printed.",
    "leader": "Show which worker leads a job.",
    "wait": "Wait until a job of a cluster has ended.",
    "show": "Show all that is known of a job of a cluster.",
    "history": "Show jobs of a cluster, also old ones.",
    "hints": "Show how fast a job trains, for schedulers.",
    "checkpoint": "List checkpoints, look into one, take the model out.",
    "scale": "Change the number of workers.",
    "migrate": "Move workers to another host.",
    "drain": "Let a worker or a host leave.",
    "undrain": "Let a drained host have jobs again.",
    "policy": "Let a job find its own number of workers.",
    "profile": "Measure a job at other numbers of workers.",
    "borrow": "Lend a job idle slots of its hosts.",
    "reclaim": "Take borrowed slots back.",
    "priority": "Change the priority of a job of a cluster.",
    "stop": "End a job after the step that runs.",
    "preempt": "Save a job within a bound and end it, to go on elsewhere.",
    "halt": "Let a job of a cluster save and give its slots back.",
    "delete": "Remove ended jobs from ZooKeeper.",
    "doctor": "Check whether edl can run on this machine.",
    "build-horovod": "Build Horovod for today's PyTorch and TensorFlow.",
    "chaos": "Kill, freeze or cut off workers, to see what follows.",
    "zookeeper": "Start and stop a ZooKeeper of this user.",
    "cluster": "Share hosts among elastic jobs.",
    "host": "Offer this machine to a cluster.",
    "queue": "Queues of a cluster, with guaranteed slots.",
    "tenant": "Tenants of a cluster, who have jobs of their own.",
    "secret": "Secrets that the jobs of a cluster read.",
    "agent": "Keep the workers of a job on this host, for programs.",
    "completion": "Let the shell complete commands and jobs at Tab.",
    "simulate": "Simulate many jobs on one cluster.",
}

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "run": (
        ("edl run -np 2 --max-np 4 --job digits python train.py", "2 workers, which may become 4"),
        ("edl run -np 2 --resume=auto python train.py", "go on from the newest checkpoint, if any"),
        (
            "edl run --or-join --job digits -np 4 --secret-file secret python train.py",
            "the same command on all hosts, which share EDL_ZOOKEEPER",
        ),
    ),
    "join": (("edl join --job digits --slots 4", "4 more workers fit on this host"),),
    "agent": (
        ("edl agent --job digits --run TOKEN --json", "as a program starts it on each host"),
    ),
    "list": (
        ("edl list", "the jobs of the cluster, or of `edl run`"),
        ("edl list --state failed", "only those that have failed"),
        ("edl list --cluster ''", "those of `edl run` where a cluster is known"),
    ),
    "top": (
        ("edl top", "all jobs of `edl run`"),
        ("edl top digits", "one job: progress, workers, newest events"),
    ),
    "status": (
        ("edl status", "the job that runs"),
        ("edl status digits --watch", "again and again, until it ends"),
        ("edl status digits --json", "for programs"),
    ),
    "scale": (("edl scale digits --np 4", "grow or shrink to 4 workers"),),
    "borrow": (("edl borrow digits --slots 2", "2 more workers, in idle slots"),),
    "reclaim": (("edl reclaim digits --slots 2", "take 2 of them back"),),
    "drain": (
        ("edl drain digits w3", "worker w3 leaves"),
        ("edl drain digits --host b", "host b leaves with all its workers"),
    ),
    "migrate": (("edl migrate digits --from a --to b", "move the workers of host a to host b"),),
    "profile": (("edl profile digits --np 1..4", "measure it with 4, 3, 2 and 1 workers"),),
    "policy": (
        ("edl policy set policy.toml digits", "this file decides from now on"),
        ("edl policy explain digits", "what it has measured, and what it wants"),
    ),
    "stop": (("edl stop digits", "end it after the step that runs"),),
    "preempt": (
        ("edl preempt digits", "save and end it within 30 s"),
        ("edl preempt digits --within 2m", "a large model takes longer to save"),
    ),
    "submit": (
        ("edl submit job.yaml", "return at once"),
        ("edl submit job.yaml --watch", "show its place in the queue until it trains"),
    ),
    "show": (("edl show digits", "state, slots, manifest, history"),),
    "wait": (("edl wait digits && python evaluate.py", "evaluate what was trained to its end"),),
    "halt": (("edl halt digits", "save, and give the slots to others"),),
    "resume": (("edl resume digits", "queue it again"),),
    "priority": (("edl priority digits 5", "jobs of a higher priority come first"),),
    "undrain": (("edl undrain b", "host b may have jobs again"),),
    "delete": (("edl delete digits", "its records and events"),),
    "dashboard": (
        ("edl dashboard digits", "prints the address to open in a browser"),
        ("edl dashboard --cluster main", "the cluster, and each of its jobs"),
        ("edl dashboard digits --port 0", "at any free port"),
        ("edl dashboard digits --actions", "with buttons that change the job"),
    ),
    "report": (
        ("edl report digits", "into digits.html"),
        ("edl report digits -o ticket.html", "for whoever is to look at it"),
    ),
    "events": (
        ("edl events digits", "since its start"),
        ("edl events digits --follow", "and go on until it ends"),
    ),
    "explain": (
        ("edl explain", "all kinds of events"),
        ("edl explain worker_failed", "one of them"),
    ),
    "timeline": (
        ("edl timeline timeline.json", "into timeline.json"),
        ("edl timeline timeline.json --job digits -o all.json", "with the job's events"),
    ),
    "history": (("edl history", "the jobs of the cluster, also those that are deleted"),),
    "hints": (("edl hints digits --json", "for another scheduler"),),
    "logs": (
        ("edl logs digits", "all workers on this host"),
        ("edl logs digits w3 --follow", "one worker, and go on"),
        ("edl logs digits --previous", "the run before"),
    ),
    "leader": (("edl leader digits", "its host and process, too"),),
    "chaos": (
        ("edl chaos digits --kill leader@step=40", "once, at that step"),
        ("edl chaos digits --kill worker --every 5s --duration 2m", "again and again"),
    ),
    "doctor": (("edl doctor", "one line for each check"),),
    "build-horovod": (("edl build-horovod", "into this Python environment"),),
    "checkpoint list": (("edl checkpoint list checkpoints/", "the highest step first"),),
    "checkpoint show": (("edl checkpoint show checkpoints/", "the newest one"),),
    "checkpoint export": (
        ("edl checkpoint export checkpoints/ model.safetensors", "the model of the newest one"),
    ),
    "simulate": (
        ("edl simulate --list", "the columns of a trace, and the policies"),
        ("edl simulate --trace jobs.csv --policy edl,fifo", "two policies beside each other"),
    ),
    "completion": (
        ('eval "$(edl completion bash)"', "in ~/.bashrc; zsh likewise in ~/.zshrc"),
        ("edl completion fish > ~/.config/fish/completions/edl.fish", "for fish"),
    ),
    "zookeeper start": (
        ("edl zookeeper start", "for jobs on this machine"),
        ("edl zookeeper start --address 10.1.0.7 --port 2181", "for several hosts"),
    ),
    "zookeeper stop": (("edl zookeeper stop", "the local one"),),
    "zookeeper status": (("edl zookeeper status", "whether it runs, and where"),),
    "cluster api": (("edl cluster api 8080", "serve the cluster over HTTP"),),
    "cluster token": (("edl cluster token", "for requests over HTTP"),),
    "cluster start": (("edl cluster start", "a controller on this machine"),),
    "cluster status": (("edl cluster status", "hosts, slots, queues"),),
    "cluster plan": (("edl cluster plan", "which job would get what now, and why"),),
    "cluster what-if": (("edl cluster what-if --add-host 2", "with one more host of 2 slots"),),
    "cluster policy": (("edl cluster policy", "which one decides now"),),
    "secret set": (("edl secret set TOKEN < token.txt", "jobs read it by its name"),),
    "secret list": (("edl secret list", "the names only"),),
    "secret delete": (("edl secret delete TOKEN", "no job can read it any more"),),
    "queue set": (("edl queue set night --quota 4", "4 slots are guaranteed to its jobs"),),
    "queue list": (("edl queue list", "with what each has and what waits"),),
    "queue delete": (("edl queue delete night", "if it has no jobs any more"),),
    "tenant create": (("edl tenant create ann", "writes a file with her secret"),),
    "tenant list": (("edl tenant list", "their names"),),
    "tenant delete": (("edl tenant delete ann", "she can submit no more"),),
    "host": (("edl host --slots 4", "4 workers fit on this machine"),),
}
"""The name of a command, without `edl` -> examples: what to type, and what it does."""


def epilog(name: str) -> str | None:
    """Return the examples of the command `name` as text for the end of its help."""
    if name not in EXAMPLES:
        return None
    lines = [f"  {words}\n      {text}" for words, text in EXAMPLES[name]]
    # The backspace tells typer to leave the lines as they are.
    return "\b\n" + "\n".join(["Examples:", *lines])
