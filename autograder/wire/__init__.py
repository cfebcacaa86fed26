"""What may cross between the judge and the sandbox, and how: plain, bounded data over a socket."""
