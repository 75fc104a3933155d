"""Test support for plugin authors, and for the tests of this repository.

- `local_instance`: a complete instance in the test process, with a real store and engine.
- `scripted_model`, `fake_connector`, `fake_clock`: replacements for the model, the platform and the
  clock.
- `telegram_server`, `email_servers`, `postgres`: test servers on loopback.
- `fault_kit`: a test suite that checks a connector while its platform, its network or the server
  fails.
- `simulation` and `crash`: the randomized tests of this repository.
"""
