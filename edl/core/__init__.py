"""The decisions of edl as pure functions: no clock, I/O, thread, environment or framework.

Values in, values out. Every function that decides also returns why, in a sentence with numbers.
"""
