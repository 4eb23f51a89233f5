"""Send to each route of the HTTP API what its OpenAPI description allows, or what it does not.

Schemathesis makes the requests up, and checks the answers by the same description.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS, load_all_checks

from edl.http.signing import AUDIENCE, authorization

ANSWER_S = 40.0
EXAMPLES = 25  # requests to each route
# Keys of a manifest that may contradict others, or name what the cluster does not have.
CONTRADICTING = {"np", "sizes", "size_step", "after", "secrets", "batch", "hints", "settings"}
KNOWN = "known"  # a job that the cluster has, for half of the requests about a job
WANTED = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
]


class Signed(requests.auth.AuthBase):
    def __init__(self, url: str, key: str) -> None:
        self._key = key
        answer = requests.get(f"{url}/v1/jobs", timeout=ANSWER_S)
        self._nonce = answer.headers["WWW-Authenticate"].removeprefix("EDL ")

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        data = body.encode() if isinstance(body, str) else body
        method, target = str(request.method), request.path_url
        signed = authorization(self._key, self._nonce, AUDIENCE, method, target, data)
        request.headers["Authorization"] = signed
        request.register_hook("response", self._keep_nonce)
        return request

    def _keep_nonce(self, response: requests.Response, **_: Any) -> None:
        following = response.headers.get("Authentication-Info", "")
        challenge = response.headers.get("WWW-Authenticate", "")
        self._nonce = following[len('nextnonce="') : -1] or challenge.removeprefix("EDL ")


def fuzz(url: str, key: str, is_valid: bool, examples: int = EXAMPLES) -> Counter[int]:
    """Fail if the description allows an answer not; return how many had which status."""
    statuses: Counter[int] = Counter()
    load_all_checks()
    checks = [CHECKS.get_one(name) for name in WANTED]
    modes = schemathesis.GenerationMode
    mode = modes.POSITIVE if is_valid else modes.NEGATIVE
    signed = Signed(url, key)
    with requests.Session() as session:
        for found in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():
            operation = found.ok()
            description = operation.definition.raw
            if not is_valid and not {"parameters", "requestBody"} & description.keys():
                continue  # nothing of it can be wrong

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            )
            def ask(case: schemathesis.Case) -> None:
                if is_valid and "job" in case.path_parameters and case.path_parameters["job"] < "m":
                    case.path_parameters["job"] = KNOWN
                if is_valid and isinstance(case.body, dict) and "cwd" in case.body:
                    for key in CONTRADICTING & case.body.keys():
                        del case.body[key]
                    case.body |= {"min": 1, "max": 4}
                answer = case.call(base_url=url, session=session, auth=signed, timeout=ANSWER_S)
                case.validate_response(answer, checks=checks)
                statuses[answer.status_code] += 1

            ask()
    return statuses
