"""Sign in from a learning platform, by LTI 1.3: an example for this demonstration, or for your own hub. See README.md.

The hub's Python needs jupyterhub-ltiauthenticator. Fill in a copy, and open the class with it:

    CLASSROOM_LTI=copy.py make classroom
"""

c = get_config()  # noqa: F821 (JupyterHub provides it)
c.JupyterHub.authenticator_class = "ltiauthenticator.lti13.auth.LTI13Authenticator"

# The platform names these four when you register the hub there.
c.LTI13Authenticator.issuer = "https://lms.example.edu"
c.LTI13Authenticator.authorize_url = "https://lms.example.edu/authorize"
c.LTI13Authenticator.jwks_endpoint = "https://lms.example.edu/jwks"
c.LTI13Authenticator.client_id = {"10000000000001"}

# A name on the hub must be the id in the class list: the login. Give the tool this custom field: login=$User.username
c.LTI13Authenticator.username_key = "custom_login"

# The platform signs for all its users, of any course. Only these may come in; write their ids in lower case.
c.LTI13Authenticator.allowed_users = {"ana", "ben", "chi", "prof"}
c.RoleSpawner.instructors = {"prof"}  # for the demonstration; a role on the platform makes no instructor
