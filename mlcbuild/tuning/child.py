"""The tuning process: a job on standard input, events as lines of JSON on standard output.

It is a process of its own, with its own session, because MetaSchedule's pools can hang when they
are interrupted: whoever started it kills the whole group, and has every event until then.
"""

from __future__ import annotations

import json
import os
import sys

from mlcbuild.tuning.job import TuningJob

MODULE = "mlcbuild.tuning.child"


def main() -> None:
    """Run the job; ``done`` is the last event unless something broke."""
    job = TuningJob.from_json(sys.stdin.read())
    # What libraries print must not mix with the events.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: str, **fields: object) -> None:
        print(json.dumps({"event": event, **fields}), file=events, flush=True)

    from mlcbuild.tuning.search import Search

    Search(job, emit).run()
    emit("done")


if __name__ == "__main__":
    main()
    # MetaSchedule's pools may wait for ever for their workers when they are torn down.
    os._exit(0)
