// brigade info: says what this build and this machine can do, with a reason for each "no".
#include <ATen/detail/CUDAHooksInterface.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/processor.h"
#include "brigade/hooks.h"
#include "brigade/optim.h"
#include "codec/cuda_module.h"
#include "common/accelerator.h"
#include "common/command.h"
#include "common/json.h"
#include "common/shaped_link.h"
#include "kernels/isa.h"
#include "torch_port/cuda_driver.h"
#include "torch_port/nccl_backend.h"

namespace brigade::tool {
namespace {

// Keeps the order in which values are added.
using Json = nlohmann::ordered_json;

Json available() { return {{"available", true}}; }
Json not_available(const std::string& reason) {
  return {{"available", false}, {"reason", reason}};
}

Json torch_part() {
  Dl_info info{};
  const bool found =
      dladdr(reinterpret_cast<const void*>(&at::detail::getCUDAHooks), &info) != 0;
  return {{"version", TORCH_VERSION},
          {"library", found && info.dli_fname ? info.dli_fname : "?"}};
}

Json cuda_part() {
  if (const auto reason = why_no_cuda()) return not_available(*reason);
  Json part = available();
  part["driver"] = cuda_driver_version().value_or("?");
  part["runtime"] = torch_port::cuda_version_text(
      static_cast<int>(at::detail::getCUDAHooks().versionCUDART()));
  part["devices"] = cuda_device_names();
  part["kernels"] = available();
  for (size_t device = 0; device < part["devices"].size(); ++device) {
    const auto reason =
        why_no_cuda_kernels({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)});
    if (reason) part["kernels"] = not_available("ATen's operations instead: " + *reason);
  }
  return part;
}

Json nccl_part() {
  if (const auto reason = torch_port::why_no_nccl()) return not_available(*reason);
  Json part = available();
  part["version"] = nccl_version().value_or("?");
  return part;
}

Json cores_part() {
  cpu_set_t cores;
  const int usable =
      sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return {{"cpu", base::processor_name()},
          {"usable", usable},
          {"machine", std::max(1U, std::thread::hardware_concurrency())}};
}

Json isa_part() {
  using kernels::Isa;
  Json sets = Json::array();
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    Json one = {{"name", kernels::isa_name(isa)}};
    one.update(!kernels::isa_runs(isa) ? not_available("this CPU does not have it")
               : isa > kernels::isa_best()
                   ? not_available("BRIGADE_ISA in the environment forbids it")
                   : available());
    sets.push_back(std::move(one));
  }
  return {{"used", kernels::isa_name(kernels::isa_best())}, {"sets", std::move(sets)}};
}

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (!address) return text;
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof text);
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof text);
  }
  return text;
}

Json interfaces_part() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return Json::array();
  std::map<std::string, Json> by_name;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    Json& one = by_name[entry->ifa_name];
    if (one.is_null()) {
      one = {{"name", entry->ifa_name},
             {"up", (entry->ifa_flags & IFF_UP) != 0},
             {"loopback", (entry->ifa_flags & IFF_LOOPBACK) != 0},
             {"addresses", Json::array()}};
    }
    const std::string address = text_of(entry->ifa_addr);
    if (!address.empty()) one["addresses"].push_back(address);
  }
  freeifaddrs(list);
  Json all = Json::array();
  for (auto& [name, one] : by_name) all.push_back(std::move(one));
  return all;
}

// The kernel's congestion control, or empty where it is not known.
std::string congestion_control() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_congestion_control");
  std::string name;
  file >> name;
  return name;
}

Json hooks_part() {
  Json all = Json::array();
  for (const HookEntry& entry : hook_table()) {
    all.push_back({{"name", entry.name},
                   {"summary", entry.summary},
                   {"options", entry.options},
                   {"error_feedback", entry.error_feedback}});
    if (entry.tolerance >= 0) all.back()["tolerance"] = entry.tolerance;
  }
  return all;
}

Json everything() {
  Json info;
  info["brigade"] = {{"version", BRIGADE_VERSION}, {"build", BRIGADE_BUILD}};
  info["torch"] = torch_part();
  // NCCL comes first: its reason is more exact before CUDA is loaded.
  const Json nccl = nccl_part();
  info["cuda"] = cuda_part();
  info["backends"] = {{"gloo", available()}, {"nccl", nccl}};
  info["cores"] = cores_part();
  info["instruction_sets"] = isa_part();
  info["interfaces"] = interfaces_part();
  info["congestion_control"] = congestion_control();
  const std::string no_link = ShapedLink::missing();
  info["shaped_link"] = no_link.empty() ? available() : not_available(no_link);
  info["hooks"] = hooks_part();
  info["optimizers"] = optim::optimizer_names();
  return info;
}

// ---- for people -------------------------------------------------------------------------

void say(const char* what, const std::string& text) {
  std::printf("%-18s%s\n", what, text.c_str());
}

std::string yes_or_no(const Json& part, const std::string& details = "") {
  if (!part.at("available").get<bool>())
    return "no: " + part.at("reason").get<std::string>();
  return details.empty() ? "yes" : "yes, " + details;
}

std::string joined(const Json& list, const char* between = ", ") {
  std::string text;
  for (const Json& one : list) {
    text += (text.empty() ? "" : between) + one.get<std::string>();
  }
  return text;
}

void print_machine(const Json& info) {
  const Json& cores = info["cores"];
  say("cores", std::to_string(cores["usable"].get<int>()) + " of " +
                   std::to_string(cores["machine"].get<int>()) + ", " +
                   cores["cpu"].get<std::string>());
  say("instructions", "uses " + info["instruction_sets"]["used"].get<std::string>());
  for (const Json& set : info["instruction_sets"]["sets"]) {
    say("", set["name"].get<std::string>() + ": " + yes_or_no(set));
  }
  const char* heading = "interfaces";
  for (const Json& one : info["interfaces"]) {
    const bool up = one["up"].get<bool>();
    say(heading, one["name"].get<std::string>() + (up ? "" : " (down)") + "  " +
                     joined(one["addresses"]));
    heading = "";
  }
  const std::string control = info["congestion_control"];
  say("TCP", "congestion control " + (control.empty() ? "unknown" : control) +
                 (control == "bbr" ? "; cubic can be twice as quick among four hosts "
                                     "(docs/choosing_a_hook.md)"
                                   : ""));
}

void print(const Json& info) {
  const Json& cuda = info["cuda"];
  const Json& nccl = info["backends"]["nccl"];
  const auto text = [](const Json& part, const char* key) {
    return part.contains(key) ? part[key].get<std::string>() : std::string();
  };
  say("brigade",
      text(info["brigade"], "version") + " (" + text(info["brigade"], "build") + ")");
  say("LibTorch", text(info["torch"], "version") + ", " + text(info["torch"], "library"));
  say("CUDA", yes_or_no(cuda, "driver " + text(cuda, "driver") + ", runtime " +
                                  text(cuda, "runtime")));
  if (cuda.contains("devices")) say("", joined(cuda["devices"], "\n                  "));
  if (cuda.contains("kernels")) say("CUDA kernels", yes_or_no(cuda["kernels"]));
  say("backend gloo", yes_or_no(info["backends"]["gloo"]));
  say("backend nccl", yes_or_no(nccl, "NCCL " + text(nccl, "version")));
  print_machine(info);
  say("--link RATE", yes_or_no(info["shaped_link"]));
  const char* heading = "hooks";
  for (const Json& hook : info["hooks"]) {
    char line[256];
    std::snprintf(line, sizeof line, "%-22s%s", text(hook, "name").c_str(),
                  text(hook, "summary").c_str());
    say(heading, line);
    if (!hook["options"].empty())
      say("", std::string(24, ' ') + "options " + joined(hook["options"]));
    heading = "";
  }
  say("optimizers", joined(info["optimizers"]));
}

}  // namespace

void add_info(CLI::App& app, int& /*exit_code*/) {
  auto path = std::make_shared<std::string>();
  CLI::App* info =
      app.add_subcommand("info", "what this build and this machine can do, and why not");
  info->footer("Example:\n  brigade info --json info.json");
  add_json_option(*info, *path);
  info->callback([path] {
    const Json found = everything();
    print(found);
    write_json(*path, found);
  });
}

}  // namespace brigade::tool
