"""The live cluster: its controllers, of which one leads, and the process that offers a host."""
