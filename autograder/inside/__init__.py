"""What runs in the sandbox, beside the student's code: nothing in here is trusted by the judge outside."""
