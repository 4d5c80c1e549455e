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
        self.assertEqual(len(self.complaints("include/brigade/hooks.h", '#include "brigade/ddp_core.h"\n')), 1)

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
        self.assertEqual(self.complaints("src/ddp/a.cpp", '#include "engine/reducer_hook.h"\n'), [])

    def test_the_one_place_that_runs_hooks_itself_may_know_the_engine_and_nothing_more(self):
        place = "src/local_sgd/hook_averaging.cpp"
        self.assertEqual(self.complaints(place, '#include "engine/engine.h"\n'), [])
        self.assertEqual(len(self.complaints(place, '#include "engine/pipeline.h"\n')), 1)
        self.assertEqual(len(self.complaints("src/local_sgd/a.cpp", '#include "engine/engine.h"\n')), 1)

    def test_an_exchange_knows_no_optimizer(self):
        for name in ("zero/a.h", "optim/a.h", "brigade/zero.h", "brigade/optim.h"):
            self.assertEqual(len(self.complaints("src/exchange/a.cpp", f'#include "{name}"\n')), 1, name)

    def test_public_headers_leak_nothing(self):
        self.assertEqual(len(self.complaints("include/brigade/a.h", "#include <nlohmann/json.hpp>\n")), 1)

    def test_kernels_know_no_torch(self):
        self.assertEqual(len(self.complaints("src/kernels/cpu/a.cpp", "#include <ATen/ATen.h>\n")), 1)


class Words(unittest.TestCase):
    def found(self, check_for, path, text):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
            return list(check_for(root))

    def test_a_search_for_the_words_of_an_error_is_named_with_file_and_line(self):
        for path, text in (
            ("src/group/a.cpp", '// why\nif (cause.find("imed out") != std::string::npos) throw;\n'),
            ("src/launch/a.cpp", 'constexpr std::array kPhrases{\n    "Connection closed by peer"};\n'),
            ("tools/brigade/a.cpp", '\nreturn text.contains(R"(Broken pipe)");\n'),
            ("python/brigade/a.py", 'def lost(error):\n    return "Connection reset" in str(error)\n'),
        ):
            found = self.found(check.error_texts, path, text)
            self.assertEqual(len(found), 1, path)
            self.assertTrue(found[0].startswith(f"{path}:2: "), found[0])

    def test_the_table_of_foreign_words_and_torch_port_may_read_them(self):
        for path in ("src/base/failure.cpp", "src/base/exception_text.cpp", "src/torch_port/a.cpp"):
            self.assertEqual(self.found(check.error_texts, path, 'text.find("imed out");\n'), [], path)

    def test_comments_and_docstrings_may_speak_of_errors(self):
        text = "char quote = '\"';  // a peer that timed out\nauto url = \"tcp://\" + host;  // Broken pipe\n"
        self.assertEqual(self.found(check.error_texts, "src/group/a.cpp", text), [])
        self.assertEqual(self.found(check.error_texts, "python/brigade/a.py", 'def f():\n    """Says who timed out."""\n'), [])

    def test_an_old_name_is_found_wherever_it_is_written(self):
        names = ("OldName", "old_function")
        for path in ("src/group/a.cpp", "docs/a.md", "tests/CMakeLists.txt", "README.md"):
            found = self.found(lambda root: check.old_names(root, names), path, "fine\nsee OldName::old_function()\n")
            self.assertEqual([line.split(" ")[:2] for line in found], [[f"{path}:2:", "OldName"], [f"{path}:2:", "old_function"]])

    def test_a_longer_name_is_another_one(self):
        text = "OldNames old_function_of my_old_function\n"
        self.assertEqual(self.found(lambda root: check.old_names(root, ("OldName", "old_function")), "src/a.h", text), [])


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
