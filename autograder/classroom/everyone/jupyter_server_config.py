"""JupyterLab's settings for everyone in the demonstration."""

c = get_config()  # noqa: F821 (Jupyter provides it)

# JupyterHub forbids frames, because on a shared host name one person's page could act in another's. Here each person
# has a host name, so a page may frame pages of the same server. JupyterLab shows the formgrader that way.
c.ServerApp.tornado_settings = {"headers": {"Content-Security-Policy": "frame-ancestors 'self'"}}
