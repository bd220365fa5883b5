"""A uvicorn server whose end is ours: signals stop it while it runs, and end nothing after it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from uvicorn import Server

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalServer(Server):
    """Runs until SIGINT or SIGTERM; there is no exit code of a signal afterwards."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the server while it runs; unlike uvicorn's, they end nothing after it."""
        previous = {number: signal.signal(number, self.on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def on_signal(self, number: int, frame: object) -> None:
        """Ends the server; a second signal does not wait for what is being sent."""
        del number, frame
        self.force_exit = self.should_exit
        self.should_exit = True
