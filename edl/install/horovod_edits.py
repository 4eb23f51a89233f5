"""The edits that edl makes to Horovod 0.28.1's source before it is built.

Horovod's last release is from 2023: it does not build with today's PyTorch and TensorFlow, and
a failed ``hvd.init()`` aborts the process. Each :class:`Edit` replaces an exact piece of one
file and must fit as often as it says; otherwise nothing is built (:func:`apply`).

The wheel carries ``horovod/edl_edits.json`` with the names of the edits; see
:mod:`edl.horovod_build`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edl.errors import REFUSED_EXIT, BuildError
from edl.horovod_build import ADDRESS, EDL_CALLS, MARKER
from edl.install import queue_edits


@dataclass(frozen=True)
class Edit:
    """One replacement in one file. Edits of the same ``name`` belong together."""

    name: str
    file: str  # relative to the root of Horovod's source
    reason: str
    anchor: str  # exact text; everything else in the file stays as it is
    replacement: str
    count: int = 1  # how often the anchor must occur, no more and no less


CXX20 = "cxx20"
SYSCONFIG = "sysconfig"
NO_XLA_OPS = "no-xla-ops"
FAILED_INIT = "failed-init-is-an-error"
INIT_AGAIN = "init-again-after-failure"
GONE = "gone-is-final"
QUICK_RETRIES = "quick-retries"
LOST_PEER = "lost-peer-is-an-error"
HALF_DONE = "half-done-transfers-fail"
GIVEN_UP = "given-up-transfers-fail"
NO_GIL = "sending-without-the-gil"
TOO_LATE = "sent-too-late-is-an-error"
CONNECT_TIMEOUT = "connect-timeout"
ONE_MESH = "one-mesh"
GRADIENTS = "gradients-outlive-the-ring"
OWN_INIT = "own-init-is-an-error"
MARK = "marker"

LOST_WITHOUT = {
    CXX20: "",  # without it there is no library, so there is nothing to lose at run time
    SYSCONFIG: "",
    NO_XLA_OPS: "",
    FAILED_INIT: "a worker that dies while a ring is being built makes the others abort",
    INIT_AGAIN: "after a failed hvd.init() no further one can succeed in that process",
    GONE: "a rendezvous that was given up is noticed after 1.5 s instead of at once",
    QUICK_RETRIES: "a rank 0 that dies during a rendezvous is noticed after 1.5 s, not 0.3 s",
    CONNECT_TIMEOUT: "waiting for a peer that has died takes five times the time-out of Gloo",
    LOST_PEER: "a worker that dies while others connect to it can make them abort",
    HALF_DONE: "a worker that dies in the midst of a transfer is noticed after 30 s, not at once",
    GIVEN_UP: "a survivor may need 30 s to leave a ring that broke, when there are three or more",
    NO_GIL: "a PyTorch worker whose ring breaks while it sends gradients can freeze for good",
    TOO_LATE: "a worker that sends something just when its ring ends can wait for ever",
    ONE_MESH: "building a ring takes about three times as long on one host",
    ADDRESS: "the host's name must resolve, or workers crash; of an interface with several "
    "addresses the ring takes the first",
    GRADIENTS: "TensorFlow's gradients are sent after backward, not while it computes",
    OWN_INIT: "a script that still imports horovod trains in each worker alone, unnoticed",
    MARK: "",
}
"""What edl cannot promise on a Horovod without the edit; empty: nothing, once it is built."""


_PAIR = "third_party/gloo/gloo/transport/tcp/pair.cc"
_TENSORFLOW_OPS = "horovod/tensorflow/mpi_ops.cc"
_GLOO_CONTEXT = "horovod/common/gloo/gloo_context.cc"
_CXX20_REASON = (
    "PyTorch >= 2.1 needs C++17; the headers of PyTorch 2.13 and TensorFlow 2.21 need C++20"
)

_OWN_INIT_SENTENCE = (
    "edl: this script calls horovod's init() under `edl run`, and each worker would train alone, "
    "as rank 0 of 1; write `import edl.torch as hvd` in place of `import horovod.torch as hvd` (or "
    "edl.tensorflow, edl.tensorflow.keras)"
)

EDITS: tuple[Edit, ...] = (
    Edit(
        name=CXX20,
        file="CMakeLists.txt",
        reason=_CXX20_REASON,
        anchor="set(CMAKE_CXX_STANDARD 14)",
        replacement="set(CMAKE_CXX_STANDARD 20)",
    ),
    Edit(
        name=CXX20,
        file="horovod/torch/CMakeLists.txt",
        reason=_CXX20_REASON,
        anchor="set(CMAKE_CXX_STANDARD 14)",
        replacement="set(CMAKE_CXX_STANDARD 20)",
    ),
    Edit(
        name=CXX20,
        file="horovod/tensorflow/CMakeLists.txt",
        reason=_CXX20_REASON,
        anchor="set(CMAKE_CXX_STANDARD 17)",
        replacement="set(CMAKE_CXX_STANDARD 20)",
    ),
    Edit(
        name=SYSCONFIG,
        file="horovod/torch/CMakeLists.txt",
        reason="Python 3.12 has no distutils",
        anchor="from distutils.sysconfig import get_python_inc; print(get_python_inc())",
        replacement="import sysconfig; print(sysconfig.get_path('include'))",
    ),
    Edit(
        name=NO_XLA_OPS,
        file="horovod/tensorflow/CMakeLists.txt",
        reason="TensorFlow's wheel lacks a header that xla_mpi_ops.cc includes; the file holds "
        "only the opt-in XLA operations for GPUs (HOROVOD_ENABLE_XLA_OPS)",
        anchor="list(APPEND TF_SOURCES "
        '"${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        replacement="",
    ),
    Edit(
        name=FAILED_INIT,
        file="horovod/common/operations.cc",
        reason="an exception in the background thread aborts the process (Horovod issues 2484, "
        "2908, 3264); here begins the part that throws when a peer dies during init",
        anchor="#if HAVE_GLOO\n#if HAVE_MPI\n  if (global_mpi_context.IsEnabled()) {\n"
        "    // Initialize gloo context",
        replacement="#if HAVE_GLOO\n  try {\n#if HAVE_MPI\n"
        "  if (global_mpi_context.IsEnabled()) {\n"
        "    // Initialize gloo context",
    ),
    Edit(
        name=FAILED_INIT,
        file="horovod/common/operations.cc",
        reason="undo what was begun, then let horovod_init() return false, which Python turns "
        "into ValueError. `goto shutdown` would jump over initialisations. The flag is set last, "
        "because horovod_init() returns as soon as it sees it",
        anchor="    state.process_set_table.Initialize(global_gloo_context);\n"
        "  }\n"
        "#endif // HAVE_GLOO\n",
        replacement="    state.process_set_table.Initialize(global_gloo_context);\n"
        "  }\n"
        "  } catch (const std::exception& error) {\n"
        '    LOG(WARNING) << "Horovod could not build its Gloo ring: " << error.what();\n'
        "    if (state.control_operation == LibType::GLOO) {\n"
        "      state.process_set_table.Finalize(global_gloo_context, SHUT_DOWN_ERROR);\n"
        "    }\n"
        "    global_gloo_context.Finalize();\n"
        "    state.initialization_failed = true;\n"
        "    return;\n"
        "  }\n"
        "#endif // HAVE_GLOO\n",
    ),
    Edit(
        name=INIT_AGAIN,
        file="horovod/common/operations.cc",
        reason="hvd.shutdown() resets every flag but this one, so that each later init of the "
        "process would be taken for a failed one",
        anchor="    horovod_global.shut_down = false;\n"
        "    horovod_global.initialization_done = false;\n",
        replacement="    horovod_global.shut_down = false;\n"
        "    horovod_global.initialization_done = false;\n"
        "    horovod_global.initialization_failed = false;\n",
    ),
    Edit(
        name=GONE,
        file="horovod/common/gloo/http_store.cc",
        reason="edl's rendezvous store answers 410 when a generation was given up; trying again, "
        "with half a second of sleep each time, cannot help",
        anchor="    try {\n      http::Response response = request.send(method, body);\n      if (",
        replacement="    bool given_up = false;\n"
        "    try {\n"
        "      http::Response response = request.send(method, body);\n"
        "      given_up = response.status == 410;\n"
        "      if (given_up) {\n"
        '        LOG(DEBUG) << "HTTP 410: this rendezvous was given up";\n'
        "      } else if (",
    ),
    Edit(
        name=GONE,
        file="horovod/common/gloo/http_store.cc",
        reason="thrown outside the try block, whose catch would swallow it",
        anchor="    // sleep for 500ms before another try.\n",
        replacement="    if (given_up) {\n"
        '      throw std::runtime_error("the rendezvous was given up (HTTP 410)");\n'
        "    }\n"
        "    // sleep for 500ms before another try.\n",
    ),
    Edit(
        name=QUICK_RETRIES,
        file="horovod/common/gloo/http_store.h",
        reason="three tries with half a second after each: 1.5 s of standing still when the "
        "process with the rendezvous store is dead",
        anchor="#define RETRY_WAITING_TIME_MILLSEC 500\n",
        replacement="#define RETRY_WAITING_TIME_MILLSEC 100\n",
    ),
    Edit(
        name=CONNECT_TIMEOUT,
        file="third_party/gloo/gloo/transport/tcp/pair.h",
        reason="Gloo waits five times HOROVOD_GLOO_TIMEOUT_SECONDS for a peer that was to "
        "connect to us (measured: 15 s with 3 s set), though it waits once that time for its "
        "address; a dead peer never comes",
        anchor="        timeout_ * 5,\n",
        replacement="        timeout_,\n",
    ),
    Edit(
        name=LOST_PEER,
        file=_PAIR,
        reason="a peer that resets its connection before we have looked at it makes getpeername() "
        "fail; that throws in Gloo's event thread, where nobody catches, and the process aborts. "
        "The accepted socket is not in the event loop yet, so it is closed here",
        anchor="  fd_ = rv;\n\n  // Common connection-made code\n  handleConnected();\n",
        replacement="  fd_ = rv;\n\n  // Common connection-made code\n"
        "  try {\n"
        "    handleConnected();\n"
        "  } catch (const std::exception& error) {\n"
        "    ::close(fd_);\n"
        "    fd_ = FD_INVALID;\n"
        '    signalException(GLOO_ERROR_MSG("lost the accepted peer: ", error.what()));\n'
        "  }\n",
    ),
    Edit(
        name=LOST_PEER,
        file=_PAIR,
        reason="the same for the connecting side: breaking a ring (shutdown() of its sockets) "
        "while a connection waits for an answer looks like success and throws there. The socket "
        "is in the event loop; signalException() takes it out and closes it",
        anchor="    return;\n  }\n\n  // Common connection-made code\n  handleConnected();\n",
        replacement="    return;\n  }\n\n  // Common connection-made code\n"
        "  try {\n"
        "    handleConnected();\n"
        "  } catch (const std::exception& error) {\n"
        '    signalException(GLOO_ERROR_MSG("lost ", peer_.str(), ": ", error.what()));\n'
        "  }\n",
    ),
    Edit(
        name=HALF_DONE,
        file=_PAIR,
        reason="a connection that ends tells the transfers that wait for their turn, but not those "
        "that have begun: what is being read, and what is queued because the socket did not take "
        "it. Whoever waits for one of these waits for Gloo's time-out of 30 s",
        anchor="  // Loop through posted send operations.\n"
        "  for (auto& op : tx_) {\n"
        "    if (op.buf != nullptr) {\n"
        "      op.buf->signalException(ex);\n"
        "    }\n"
        "  }\n",
        replacement="  // Loop through posted send operations.\n"
        "  for (auto& op : tx_) {\n"
        "    if (op.buf != nullptr) {\n"
        "      op.buf->signalException(ex);\n"
        "    }\n"
        "    NonOwningPtr<UnboundBuffer> sending(op.ubuf);\n"
        "    if (sending) {\n"
        "      sending->signalException(ex);\n"
        "    }\n"
        "  }\n"
        "\n"
        "  // The operation that is being read.\n"
        "  NonOwningPtr<UnboundBuffer> receiving(rx_.ubuf);\n"
        "  if (receiving) {\n"
        "    receiving->signalException(ex);\n"
        "  }\n",
    ),
    *(
        Edit(TOO_LATE, file, queue_edits.REASON, anchor, replacement, count)
        for file, anchor, replacement, count in queue_edits.PIECES
    ),
    Edit(
        name=GIVEN_UP,
        file=_PAIR,
        reason="a collective that fails by one neighbour gives up its buffers while a message of "
        "the other one is half read. The rest of it has no place to go, so nothing is read from "
        "that connection any more, not even its end: who waits for a later message waits for "
        "Gloo's time-out of 30 s, and the event loop spins. Such a connection has failed",
        anchor="    const auto nbytes = prepareRead(rx_, buf, iov);\n"
        "    if (nbytes < 0) {\n"
        "      return false;\n",
        replacement="    const auto nbytes = prepareRead(rx_, buf, iov);\n"
        "    if (nbytes < 0) {\n"
        "      if (rx_.getOpcode() == Op::SEND_UNBOUND_BUFFER) {\n"
        "        signalException(\n"
        '            GLOO_ERROR_MSG("gave up a message of ", peer_.str()));\n'
        "      }\n"
        "      return false;\n",
    ),
    Edit(
        name=NO_GIL,
        file="horovod/torch/mpi_ops_v2.cc",
        reason="a call that sends a tensor holds Python's lock (the GIL) and takes Horovod's locks "
        "of process sets and tensors. When a ring ends, Horovod's own thread holds these two and "
        "lets go of the tensors that were sent, for which PyTorch takes the GIL: each waits for "
        "the other, and no Python thread of the process runs again",
        anchor="  ThrowIfError(common::CheckInitialized());\n",
        replacement="  py::gil_scoped_release release_python_gil;\n"
        "  ThrowIfError(common::CheckInitialized());\n",
        count=18,
    ),
    Edit(
        name=GRADIENTS,
        file=_TENSORFLOW_OPS,
        reason="an operation that fails ends the whole call of a graph, and the local gradients "
        "in it are gone. Allreduces named edl_gradient* count their failures instead, for "
        "edl/tensorflow/gradient_ops.py to ask after them; and while nothing is to be sent "
        "(in a world of one, in a warm-up) they hand on what they get",
        anchor="class HorovodAllreduceOp : public AsyncOpKernel {\n",
        replacement="""// How edl's gradients fare in the step that is under way.
struct EdlGradients {
  std::mutex mutex;
  bool sends = false;
  int sent = 0;
  int failures = 0;
  std::string reason;
};

EdlGradients& edl_gradients() {
  static auto* gradients = new EdlGradients(); // outlives every thread
  return *gradients;
}

bool EdlSends() {
  std::lock_guard<std::mutex> guard(edl_gradients().mutex);
  edl_gradients().sent += edl_gradients().sends;
  return edl_gradients().sends;
}

void EdlNote(const common::Status& status) {
  std::lock_guard<std::mutex> guard(edl_gradients().mutex);
  edl_gradients().failures++;
  edl_gradients().reason = status.reason();
}

extern "C" {

// From now on gradients are sent, or handed on. Counts begin anew.
void horovod_edl_send_gradients(bool sends) {
  std::lock_guard<std::mutex> guard(edl_gradients().mutex);
  edl_gradients().sends = sends;
  edl_gradients().sent = edl_gradients().failures = 0;
}

// How many gradients have been sent since.
int horovod_edl_sent_gradients() {
  std::lock_guard<std::mutex> guard(edl_gradients().mutex);
  return edl_gradients().sent;
}

// How many could not be reduced since; why the last one could not goes into `reason`.
int horovod_edl_failed_gradients(char* reason, size_t size) {
  std::lock_guard<std::mutex> guard(edl_gradients().mutex);
  if (edl_gradients().failures > 0 && size > 0) {
    auto length = edl_gradients().reason.copy(reason, size - 1);
    reason[length] = 0;
  }
  return edl_gradients().failures;
}

} // extern "C"

class HorovodAllreduceOp : public AsyncOpKernel {
""",
    ),
    Edit(
        name=GRADIENTS,
        file=_TENSORFLOW_OPS,
        reason="as above: hand on",
        anchor="    auto tensor = context->input(0);\n"
        "    horovod::common::ReduceOp reduce_op = "
        "static_cast<horovod::common::ReduceOp>(reduce_op_);\n"
        "    Tensor* output;\n",
        replacement="    auto tensor = context->input(0);\n"
        '    const bool edl_gradient = node_name.rfind("edl_gradient", 0) == 0;\n'
        "    if (edl_gradient && !EdlSends()) {\n"
        "      context->set_output(0, tensor);\n"
        "      done();\n"
        "      return;\n"
        "    }\n"
        "    horovod::common::ReduceOp reduce_op = "
        "static_cast<horovod::common::ReduceOp>(reduce_op_);\n"
        "    Tensor* output;\n",
    ),
    Edit(
        name=GRADIENTS,
        file=_TENSORFLOW_OPS,
        reason="as above",
        anchor="    auto enqueue_result = EnqueueTensorAllreduce(\n"
        "        hvd_context, hvd_tensor, hvd_output, ready_event_list, node_name, device,\n"
        "        [context, done](const common::Status& status) {\n",
        replacement="    auto enqueue_result = EnqueueTensorAllreduce(\n"
        "        hvd_context, hvd_tensor, hvd_output, ready_event_list, node_name, device,\n"
        "        [context, done, edl_gradient](const common::Status& status) {\n"
        "          if (edl_gradient && !status.ok()) {\n"
        "            EdlNote(status);\n"
        "            done();\n"
        "            return;\n"
        "          }\n",
    ),
    Edit(
        name=GRADIENTS,
        file=_TENSORFLOW_OPS,
        reason="as above, for a ring that broke before",
        anchor="        reduce_op, (double)prescale_factor_, (double)postscale_factor_,\n"
        "        process_set_id_);\n",
        replacement="        reduce_op, (double)prescale_factor_, (double)postscale_factor_,\n"
        "        process_set_id_);\n"
        "    if (edl_gradient && !enqueue_result.ok()) {\n"
        "      EdlNote(enqueue_result);\n"
        "      done();\n"
        "      return;\n"
        "    }\n",
    ),
    Edit(
        name=MARK,
        file="setup.py",
        reason="the wheel says which edits it has",
        anchor="      zip_safe=False,\n",
        replacement=f"      zip_safe=False,\n      package_data={{'horovod': ['{MARKER}']}},\n",
    ),
    Edit(
        name=ONE_MESH,
        file=_GLOO_CONTEXT,
        reason="an init connects every worker with every other one up to six times: globally, "
        "per host and across hosts, and the same again for the global process set. When all "
        "workers are on one host its mesh is the global one; a context of one needs no server",
        anchor="  local_ctx = Rendezvous(HOROVOD_GLOO_LOCAL_PREFIX + hostname_,\n"
        "                         rendezvous_addr_env, rendezvous_port,\n"
        "                         local_rank, local_size, dev, timeout_);\n",
        replacement="  local_ctx = local_size == size && local_rank == rank\n"
        "      ? ctx\n"
        "      : Rendezvous(HOROVOD_GLOO_LOCAL_PREFIX + hostname_,\n"
        "                   local_size == 1 ? nullptr : rendezvous_addr_env, rendezvous_port,\n"
        "                   local_rank, local_size, dev, timeout_);\n",
    ),
    Edit(
        name=ONE_MESH,
        file=_GLOO_CONTEXT,
        reason="as above",
        anchor="  cross_ctx = Rendezvous(HOROVOD_GLOO_CROSS_PREFIX + std::to_string(local_rank),\n"
        "                         rendezvous_addr_env, rendezvous_port,\n"
        "                         cross_rank, cross_size, dev, timeout_);\n",
        replacement="  cross_ctx = Rendezvous(HOROVOD_GLOO_CROSS_PREFIX "
        "+ std::to_string(local_rank),\n"
        "                         cross_size == 1 ? nullptr : rendezvous_addr_env, "
        "rendezvous_port,\n"
        "                         cross_rank, cross_size, dev, timeout_);\n",
    ),
    Edit(
        name=ONE_MESH,
        file=_GLOO_CONTEXT,
        reason="the global process set has the members of the global contexts, and all of them "
        "are used by the same background thread, in the same order on every worker",
        anchor="  global_ctx = global_context.ctx;\n"
        "  timeout_ = global_context.timeout_;\n"
        "  hostname_ = global_context.hostname_;\n",
        replacement="  global_ctx = global_context.ctx;\n"
        "  timeout_ = global_context.timeout_;\n"
        "  hostname_ = global_context.hostname_;\n"
        "  if (registered_ranks.empty()) {\n"
        "    ctx = global_context.ctx;\n"
        "    local_ctx = global_context.local_ctx;\n"
        "    cross_ctx = global_context.cross_ctx;\n"
        "    return;\n"
        "  }\n",
    ),
    Edit(
        name=ADDRESS,
        file=_GLOO_CONTEXT,
        reason="HOROVOD_GLOO_IFACE may be an address of this host: of an interface that has "
        "several, Gloo takes the first",
        anchor="std::chrono::milliseconds GetTimeoutFromEnv() {\n",
        replacement="// The place of the ring's connections: an IPv4 address of this host, or an "
        """interface.
attr EdlDeviceAttr(const std::string& iface) {
  attr device_attr;
  device_attr.ai_family = AF_UNSPEC;
  struct in_addr address;
  const bool is_address = inet_pton(AF_INET, iface.c_str(), &address) == 1;
  (is_address ? device_attr.hostname : device_attr.iface) = iface;
  return device_attr;
}

std::chrono::milliseconds GetTimeoutFromEnv() {
""",
    ),
    Edit(
        name=ADDRESS,
        file=_GLOO_CONTEXT,
        reason="inet_pton()",
        anchor='#include "gloo_context.h"\n',
        replacement='#include "gloo_context.h"\n\n#include <arpa/inet.h>\n',
    ),
    Edit(
        name=ADDRESS,
        file=_GLOO_CONTEXT,
        reason="as above, in the global context",
        anchor="  attr device_attr;\n"
        "  device_attr.iface = gloo_iface_;\n"
        "\n"
        "  device_attr.ai_family = AF_UNSPEC;\n"
        "  auto dev = CreateDevice(device_attr);\n",
        replacement="  auto dev = CreateDevice(EdlDeviceAttr(gloo_iface_));\n",
    ),
    Edit(
        name=ADDRESS,
        file=_GLOO_CONTEXT,
        reason="a process set has a context of its own, whose gloo_iface_ nobody sets, so Gloo "
        "looks the host's own name up: where that has no address the process crashes "
        "(device.cc takes getaddrinfo's error for success), and a wrong one is used",
        anchor="  attr device_attr;\n"
        "  device_attr.iface = gloo_iface_;\n"
        "  device_attr.ai_family = AF_UNSPEC;\n"
        "  auto dev = CreateDevice(device_attr);\n"
        "\n"
        "  global_ctx = global_context.ctx;\n",
        replacement="  auto dev = CreateDevice(EdlDeviceAttr(global_context.gloo_iface_));\n"
        "\n"
        "  global_ctx = global_context.ctx;\n",
    ),
    Edit(
        name=ADDRESS,
        file="third_party/gloo/gloo/transport/tcp/device.cc",
        reason="getaddrinfo() tells most of its errors by other numbers than -1, and the result "
        "that is then read was never set",
        anchor="  GLOO_ENFORCE_NE(rv, -1);\n  struct addrinfo* rp;\n",
        replacement='  GLOO_ENFORCE_EQ(rv, 0, attr.hostname, ": ", gai_strerror(rv));\n'
        "  struct addrinfo* rp;\n",
    ),
    Edit(
        name=OWN_INIT,
        file="horovod/common/basics.py",
        reason="a launcher of edl tells Horovod nothing, so a script that calls init() by itself "
        "would train in each worker, as rank 0 of 1, and all would write the same files; edl says "
        "when it is the one that calls (edl.framework.horovod)",
        anchor="        if comm is None:\n            comm = []\n",
        replacement="        if (os.environ.get('EDL_LAUNCH')\n"
        f"                and not getattr(HorovodBasics, {EDL_CALLS!r}, False)):\n"
        "            import sys\n"
        f"            print({_OWN_INIT_SENTENCE!r}, file=sys.stderr, flush=True)\n"
        f"            raise SystemExit({REFUSED_EXIT})\n"
        "        if comm is None:\n            comm = []\n",
    ),
)


def fingerprint() -> str:
    """A hash of what the edits change: two builds with the same one got the same edits."""
    changes = [(edit.file, edit.anchor, edit.replacement, edit.count) for edit in EDITS]
    return hashlib.sha256(repr(changes).encode()).hexdigest()[:12]


def wanted(source: Path, tensorflow_include: Path | None) -> tuple[Edit, ...]:
    """The edits that this build needs: all, but :data:`NO_XLA_OPS` only where a header lacks.

    ``tensorflow_include`` is the folder of TensorFlow's headers, None for a build without it.
    """
    missing = () if tensorflow_include is None else _missing_xla_headers(source, tensorflow_include)
    return tuple(edit for edit in EDITS if edit.name != NO_XLA_OPS or missing)


def apply(source: Path, edits: Iterable[Edit]) -> None:
    """Make the edits in ``source``, the unpacked source distribution.

    Raises:
        BuildError: an anchor does not occur exactly as often as it must; it names the edit.
            Files edited before it stay edited, so build only after success.
    """
    for edit in edits:
        path = source / edit.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = text.count(edit.anchor)
        if found != edit.count:
            raise BuildError(
                f"edit {edit.name!r} of Horovod does not fit: {edit.file} has its anchor "
                f"{found} times instead of {edit.count}; this is not the source of Horovod "
                "0.28.1 that edl knows. Remove it from the cache and try again"
            )
        path.write_text(text.replace(edit.anchor, edit.replacement), encoding="utf-8")


def write_marker(source: Path, edits: Iterable[Edit], key: str) -> None:
    """Put the marker into ``source``, so that the wheel says what it was built with."""
    names = sorted({edit.name for edit in edits})
    marker = {"edits": names, "fingerprint": fingerprint(), "key": key}
    (source / "horovod" / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")


def _missing_xla_headers(source: Path, include: Path) -> tuple[str, ...]:
    """Headers of TensorFlow that xla_mpi_ops.cc includes and ``include`` does not have."""
    text = (source / "horovod/tensorflow/xla_mpi_ops.cc").read_text(encoding="utf-8")
    headers = re.findall(r'^#include "(tensorflow/[^"]+)"', text, re.MULTILINE)
    return tuple(header for header in headers if not (include / header).is_file())
