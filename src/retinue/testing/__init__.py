"""Test support for plugin authors, and for the tests of this repository.

- `local_instance`: a complete instance in the test process, with a real store and engine.
- `scripted_model`, `fake_connector`, `fake_clock`: fakes of the model, the platform and the clock.
- `telegram_server`, `email_servers`, `postgres`: servers on loopback.
- `fault_kit`: checks a connector against network, platform and server failures.
- `simulation` and `crash`: the randomized tests of this repository.
"""
