"""Serve the HTTP port of a worker's daemon, and send requests to it, without ring or ZooKeeper.

:class:`edl.http.server.DaemonServer` is the server, :mod:`edl.http.client` sends requests, and
:mod:`edl.http.signing` signs those that change something.
"""
