#!/usr/bin/env python3
"""scripts/check_manifest: what it accepts, and what it refuses. Runs with the Python that has jsonschema and ruamel.yaml (scripts/setup --check)."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_manifest"
DEFINITION = """
spec:
  group: example.org
  names: {kind: Job}
  versions:
    - name: v1
      schema:
        openAPIV3Schema:
          type: object
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec:
              type: object
              required: [replicas]
              properties:
                replicas: {type: integer, format: int32}
                limit:
                  anyOf: [{type: integer}, {type: string}]
                  x-kubernetes-int-or-string: true
                roles:
                  type: object
                  additionalProperties:
                    type: object
                    properties: {command: {type: array, items: {type: string}}}
                anything:
                  type: object
                  x-kubernetes-preserve-unknown-fields: true
                  properties: {known: {type: string}}
"""
GOOD = """
apiVersion: example.org/v1
kind: Job
metadata: {name: any, labels: {a: b}}
spec: {replicas: 2, limit: 1Gi, roles: {Master: {command: [run]}}, anything: {unknown: 1}}
"""


class CheckManifest(unittest.TestCase):
    def check(self, manifest):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder, name) for name in ("definition.yaml", "manifest.yaml")]
            for path, text in zip(paths, (DEFINITION, manifest)):
                path.write_text(text)
            return subprocess.run([sys.executable, SCRIPT, *paths], capture_output=True, text=True)

    def refused(self, manifest, says):
        done = self.check(manifest)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(says, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_good_one_is_accepted(self):
        done = self.check(GOOD)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_field_that_the_schema_does_not_name_is_refused(self):
        self.refused(GOOD.replace("replicas: 2", "replicas: 2, replica: 2"), "$.spec: Additional properties are not allowed ('replica' was unexpected)")
        self.refused(GOOD.replace("{command: [run]}", "{comand: [run]}"), "$.spec.roles.Master: Additional properties")
        self.refused(GOOD + "specs: {}\n", "$: Additional properties")

    def test_a_wrong_type_is_refused(self):
        self.refused(GOOD.replace("replicas: 2", 'replicas: "2"'), "$.spec.replicas: '2' is not of type 'integer'")

    def test_a_field_that_is_missing_is_refused(self):
        self.refused(GOOD.replace("replicas: 2, ", ""), "$.spec: 'replicas' is a required property")

    def test_another_kind_or_version_is_refused(self):
        self.refused(GOOD.replace("kind: Job", "kind: Pod"), "the definition is of example.org's Job, the manifest of example.org's Pod")
        self.refused(GOOD.replace("org/v1", "org/v2"), "no version v2; it has v1")

    def test_without_a_definition_it_says_what_it_wants(self):
        done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"skipped, no schema given: .*kubeflow.org_pytorchjobs.yaml")


if __name__ == "__main__":
    unittest.main(verbosity=2)
