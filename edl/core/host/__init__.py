"""Decide what one host does about its worker processes, horovodrun slots and host discovery."""
