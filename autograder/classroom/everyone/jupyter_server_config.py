"""JupyterLab, for every person of the demonstration."""

c = get_config()  # noqa: F821 (Jupyter provides it)

# JupyterHub forbids pages in frames, because without host names of their own one person's page could act in another's.
# Here each has one, so a page may frame pages of the same server: the formgrader is shown that way.
c.ServerApp.tornado_settings = {"headers": {"Content-Security-Policy": "frame-ancestors 'self'"}}
