#!/usr/bin/env python3
"""The layer check finds each kind of mistake, and is silent where there is none."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check


class LayerCheck(unittest.TestCase):
    def complaints(self, path, text):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for home in ("src/group/process_group.cpp", path):
                (root / home).parent.mkdir(parents=True, exist_ok=True)
                (root / home).touch()
            (root / path).write_text(text)
            return list(check.complaints(root))

    def test_an_include_of_a_layer_above_is_named_with_file_and_line(self):
        found = self.complaints("src/codec/a.cpp", '#include <vector>\n#include "engine/stations.h"\n')
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("src/codec/a.cpp:2: codec includes engine/stations.h"), found[0])

    def test_a_public_header_counts_as_its_layer(self):
        self.assertEqual(len(self.complaints("src/codec/a.h", '#include "brigade/process_group.h"\n')), 1)
        self.assertEqual(len(self.complaints("include/brigade/hooks/a.h", '#include "brigade/ddp_core.h"\n')), 1)

    def test_an_include_of_a_layer_below_is_fine(self):
        self.assertEqual(self.complaints("src/hooks/a.cpp", '#include "codec/codec.h"\n#include "brigade/error.h"\n'), [])

    def test_backends_are_named_in_torch_port_only(self):
        line = "#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>\n"
        self.assertEqual(len(self.complaints("src/group/a.cpp", line)), 1)
        self.assertEqual(self.complaints("src/torch_port/a.cpp", line), [])

    def test_what_a_layer_keeps_to_itself_is_included_there_only(self):
        line = '#include "ddp/core_state.h"\n'
        self.assertEqual(len(self.complaints("src/zero/a.cpp", line)), 1)
        self.assertEqual(self.complaints("src/ddp/a.cpp", line), [])

    def test_hooks_use_what_is_public_of_the_layers_below(self):
        for layer in ("exchange", "hooks", "optim", "zero", "local_sgd"):
            for name in ("engine/comm/lane.h", "group/network.h", "torch_port/nccl_backend.h"):
                found = self.complaints(f"src/{layer}/a.cpp", f'#include "{name}"\n')
                self.assertTrue(any(f"{name} is private" in line for line in found), (layer, name, found))
            self.assertEqual(self.complaints(f"src/{layer}/a.cpp", '#include "brigade/hook.h"\n'), [], layer)
        self.assertEqual(self.complaints("src/ddp/a.cpp", '#include "engine/bridge.h"\n'), [])

    def test_the_one_place_that_runs_hooks_itself_may_know_the_engine_and_nothing_more(self):
        place = "src/local_sgd/hook_averaging.cpp"
        self.assertEqual(self.complaints(place, '#include "engine/engine.h"\n'), [])
        self.assertEqual(len(self.complaints(place, '#include "engine/pipeline.h"\n')), 1)
        self.assertEqual(len(self.complaints("src/local_sgd/a.cpp", '#include "engine/engine.h"\n')), 1)

    def test_the_texts_of_others_are_searched_in_one_place(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for home in ("src/base/failure.cpp", "src/launch/a.cpp"):
                (root / home).parent.mkdir(parents=True, exist_ok=True)
                (root / home).write_text('if (text.find("Connection closed by peer") != npos) return;\n')
            (root / "src/launch/b.cpp").write_text('throw Error("it timed out waiting for a peer");\n')
            found = list(check.searched_texts(root))
            self.assertEqual(len(found), 1, found)
            self.assertTrue(found[0].startswith("src/launch/a.cpp:1: 'by peer' is a text of others"), found[0])

    def test_an_exchange_knows_no_optimizer(self):
        for name in ("zero/a.h", "optim/a.h", "brigade/zero/zero.h", "brigade/optim/optimizer.h"):
            self.assertEqual(len(self.complaints("src/exchange/a.cpp", f'#include "{name}"\n')), 1, name)

    def test_public_headers_leak_nothing(self):
        self.assertEqual(len(self.complaints("include/brigade/a.h", "#include <nlohmann/json.hpp>\n")), 1)

    def test_what_has_grown_too_large_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src/hooks").mkdir(parents=True)
            for number in range(25):
                (root / f"src/hooks/{number}.cpp").write_text("\n" * 500)
            self.assertEqual(list(check.crowded(root)), [])
            (root / "src/hooks/25.cpp").write_text("\n" * 501)
            found = list(check.crowded(root))
            self.assertEqual([line.split(":")[0] for line in found], ["src/hooks", "src/hooks/25.cpp"])

    def test_kernels_know_no_torch(self):
        self.assertEqual(len(self.complaints("src/kernels/cpu/a.cpp", "#include <ATen/ATen.h>\n")), 1)


class Described(unittest.TestCase):
    def undescribed(self, folder, readme="**May know** `base`, `group` and `torch_port`; no `codec`.", drawn=True):
        with tempfile.TemporaryDirectory() as root:
            root = pathlib.Path(root)
            (root / "src" / folder).mkdir(parents=True)
            (root / "docs/images").mkdir(parents=True)
            if readme:
                (root / "src" / folder / "README.md").write_text(readme)
            text = f'<text class="name" x="1">{folder}</text>' if drawn else ""
            (root / "docs/images/layers.svg").write_text(text)
            return list(check.undescribed(root))

    def test_a_layer_with_a_readme_in_the_drawing_is_fine(self):
        self.assertEqual(self.undescribed("engine"), [])

    def test_a_folder_without_a_readme_is_named(self):
        found = self.undescribed("engine", readme="")
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("src/engine: it has no README.md"), found[0])

    def test_a_readme_that_says_something_else_is_named(self):
        for readme in ("**May know** `base` and `codec`.", "# engine"):
            found = self.undescribed("engine", readme=readme)
            self.assertEqual(len(found), 1)
            self.assertIn("**May know**", found[0])

    def test_a_folder_that_is_not_drawn_is_named(self):
        self.assertEqual(self.undescribed("engine", drawn=False), ["src/engine: it is not in docs/images/layers.svg"])

    def test_a_folder_that_is_no_layer_is_named(self):
        self.assertIn("src/utils: tests/layers/check.py does not say what it may include", self.undescribed("utils"))


if __name__ == "__main__":
    unittest.main()
