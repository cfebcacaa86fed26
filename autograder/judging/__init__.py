"""The judge, outside the sandbox: it runs the instructor's tests, which call a student's functions through proxies."""
