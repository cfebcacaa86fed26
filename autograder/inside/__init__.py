"""The grader's code that runs in the sandbox, beside the student's; the judge outside trusts none of it."""
