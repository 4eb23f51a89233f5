"""Serve the verbs of a cluster over HTTP: `edl cluster api`, `edl cluster start --api`.

It needs the extra `api` (FastAPI and uvicorn), and nothing else of edl imports it but the verb. The
routes call :class:`edl.client.Cluster`, so whatever a route does, a command can do as well.
"""
