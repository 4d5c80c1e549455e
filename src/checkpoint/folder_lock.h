// Two jobs that save into one folder would remove each other's sets, and a restart would
// continue the wrong run.
#pragma once
#include <string>

namespace brigade::checkpoint {

// Claims the folder for this process, until the process ends or gives it back. Does nothing
// if the process has it already, or if the file system has no locks. Throws CheckpointError
// that names the process which has it.
void claim_folder(const std::string& folder);
// For a process that has the folder and no longer commits.
void give_back_folder(const std::string& folder);

}  // namespace brigade::checkpoint
