"""Outside the sandbox: the judge runs the instructor's tests and calls a student's functions through proxies."""
