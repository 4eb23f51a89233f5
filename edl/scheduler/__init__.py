"""The processes of a live cluster: its controllers, of which one leads, and hosts (``host``)."""
