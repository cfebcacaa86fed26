"""The connection between the judge and the sandbox: plain, bounded data over a socket."""
