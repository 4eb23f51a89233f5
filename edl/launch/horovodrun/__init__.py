"""The launcher of elastic `horovodrun`: its driver, host discovery, the process in each slot."""
