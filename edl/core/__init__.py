"""The decisions of edl as pure functions: no clock, I/O, thread, environment or framework.

Values in, values out. Every function that decides also returns why, in a sentence with numbers.
``step`` holds what every step decides, ``job`` what a job decides, ``host`` what one host decides,
``policy`` what a job wishes, ``cluster`` which of several jobs has which slots;
``records`` are the values that all of them, and everybody else, read and write.
"""
