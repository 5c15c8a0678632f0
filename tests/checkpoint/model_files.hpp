/// @file
/// A file system in memory that promises what file systems promise and nothing more: bytes are
/// durable after sync(), names after sync_directory(), and a rename is atomic. It records what
/// changes it, and makes what a machine may find after a crash at any of these places.
#pragma once

#include "support/standard.hpp"
#include "zero/checkpoint/files.hpp"

namespace checkpoint_tests {

using zero::FileAnswer;
using zero::FileMode;

/// A path's names; relative ones begin at the root, too.
[[nodiscard]] inline std::vector<std::string> names_of(std::string const& path) {
  std::vector<std::string> names;
  for (std::size_t begin = 0, end = 0; begin < path.size(); begin = end + 1) {
    end = std::min(path.find('/', begin), path.size());
    std::string const name = path.substr(begin, end - begin);
    if (!name.empty() && name != ".") names.push_back(name);
  }
  return names;
}

/// What a crash does to what was not synced.
enum class Loss : std::uint8_t {
  everything,
  bytes,  ///< all names stay
  names,  ///< all bytes stay
  nothing,
  chance,  ///< each name and each block of its own
};

/// The contents: as programs see them, and what of it is durable.
class ModelDisk {
 public:
  using Node = std::size_t;
  static constexpr Node root = 0;

  ModelDisk() { nodes_.push_back({.directory = true}); }

  /// The node at a path, or why there is none.
  [[nodiscard]] FileAnswer find(std::vector<std::string> const& path) const {
    Node node = root;
    for (std::string const& name : path) {
      if (!nodes_[node].directory) return -ENOTDIR;
      auto const found = nodes_[node].names.find(name);
      if (found == nodes_[node].names.end()) return -ENOENT;
      node = found->second;
    }
    return static_cast<FileAnswer>(node);
  }
  [[nodiscard]] FileAnswer find(std::string const& path) const { return find(names_of(path)); }
  [[nodiscard]] bool is_directory(FileAnswer node) const { return at(node).directory; }
  [[nodiscard]] std::string const& bytes(Node node) const { return nodes_[node].bytes; }
  [[nodiscard]] std::map<std::string, Node> const& names(FileAnswer node) const {
    return at(node).names;
  }

  // Each answers with the node that it has changed, or why nothing has changed.
  FileAnswer create(std::string const& path) {
    FileAnswer const node = find(path);
    if (node == -ENOENT) return add(names_of(path), false);
    if (node < 0) return node;
    if (is_directory(node)) return -EISDIR;
    at(node).bytes.clear();
    at(node).unsynced_bytes.push_back({});
    return node;
  }
  FileAnswer make_directory(std::string const& path) {
    FileAnswer const node = find(path);
    if (node >= 0) return -EEXIST;
    return node == -ENOENT ? add(names_of(path), true) : node;
  }
  FileAnswer write(Node node, std::uint64_t offset, std::string const& bytes) {
    Entry& file = nodes_[node];
    std::size_t const end = static_cast<std::size_t>(offset) + bytes.size();
    if (end > file.bytes.size()) file.bytes.resize(end);
    file.bytes.replace(offset, bytes.size(), bytes);
    file.unsynced_bytes.push_back({offset, bytes, file.bytes.size()});
    return static_cast<FileAnswer>(node);
  }
  FileAnswer sync(Node node) {
    Entry& file = nodes_[node];
    file.durable_bytes = file.bytes;
    file.unsynced_bytes.clear();
    return static_cast<FileAnswer>(node);
  }
  FileAnswer sync_directory(std::string const& path) {
    FileAnswer const node = find(path);
    if (node < 0) return node;
    if (!is_directory(node)) return -ENOTDIR;
    Entry& directory = at(node);
    directory.durable_names = directory.names;
    directory.unsynced_names.clear();
    return node;
  }
  FileAnswer rename(std::string const& from, std::string const& to) {
    std::vector<std::string> source = names_of(from);
    std::vector<std::string> target = names_of(to);
    FileAnswer const node = find(source);
    if (node < 0) return node;
    FileAnswer const there = find(target);
    std::string const old_name = source.back();
    std::string const new_name = target.back();
    source.pop_back();
    target.pop_back();
    // Which of two directories' syncs makes it durable, nobody promises.
    if (source != target) return -EXDEV;
    if (there == node) return node;
    if (there >= 0) {
      if (is_directory(there) != is_directory(node))
        return is_directory(there) ? -EISDIR : -ENOTDIR;
      if (!at(there).names.empty()) return -ENOTEMPTY;
    }
    change_names(find(target), {{old_name, root}, {new_name, static_cast<Node>(node)}});
    return node;
  }
  FileAnswer remove(std::string const& path) {
    std::vector<std::string> directory = names_of(path);
    FileAnswer const node = find(directory);
    if (node < 0) return node;
    if (!at(node).names.empty()) return -ENOTEMPTY;
    std::string const leaf = directory.back();
    directory.pop_back();
    change_names(find(directory), {{leaf, root}});
    return node;
  }

  /// What the machine finds when it is up again; all of that is durable.
  [[nodiscard]] ModelDisk crashed(Loss loss, std::mt19937_64& random) const {
    ModelDisk found;
    found.nodes_.resize(nodes_.size());
    for (Node i = 0; i < nodes_.size(); ++i) {
      Entry const& before = nodes_[i];
      Entry& after = found.nodes_[i];
      after.directory = before.directory;
      if (before.directory) {
        after.names = after.durable_names = names_found(before, loss, random);
      } else {
        after.bytes = after.durable_bytes = bytes_found(before, loss, random);
      }
    }
    return found;
  }

 private:
  /// What a directory says of a name; the root stands for nothing.
  using Naming = std::pair<std::string, Node>;
  /// A write, or, without bytes, a truncation to nothing.
  struct Written {
    std::uint64_t offset = 0;
    std::string bytes{};
    std::uint64_t size = 0;  ///< of the file, afterwards
  };
  struct Entry {
    bool directory = false;
    std::map<std::string, Node> names{};
    std::map<std::string, Node> durable_names{};
    /// In their order. What stands in one of them happens at once, or not at all.
    std::vector<std::vector<Naming>> unsynced_names{};
    std::string bytes{};
    std::string durable_bytes{};
    std::vector<Written> unsynced_bytes{};
  };

  [[nodiscard]] Entry const& at(FileAnswer node) const {
    return nodes_[static_cast<std::size_t>(node)];
  }
  [[nodiscard]] Entry& at(FileAnswer node) { return nodes_[static_cast<std::size_t>(node)]; }

  static void put(std::map<std::string, Node>& names, std::vector<Naming> const& namings) {
    for (auto const& [name, node] : namings) {
      if (node == root) {
        names.erase(name);
      } else {
        names[name] = node;
      }
    }
  }
  void change_names(FileAnswer directory, std::vector<Naming> namings) {
    Entry& entry = at(directory);
    put(entry.names, namings);
    entry.unsynced_names.push_back(std::move(namings));
  }

  FileAnswer add(std::vector<std::string> path, bool directory) {
    std::string const leaf = path.back();
    path.pop_back();
    FileAnswer const parent = find(path);
    if (parent < 0) return parent;
    nodes_.push_back({.directory = directory});
    change_names(parent, {{leaf, nodes_.size() - 1}});
    return static_cast<FileAnswer>(nodes_.size() - 1);
  }
  [[nodiscard]] static std::map<std::string, Node> names_found(Entry const& directory,
                                                               Loss loss,
                                                               std::mt19937_64& random) {
    if (loss == Loss::nothing || loss == Loss::bytes) return directory.names;
    std::map<std::string, Node> names = directory.durable_names;
    if (loss != Loss::chance) return names;
    std::uint64_t const of_four = 1 + random() % 3;
    // A name's changes keep their order; those of several names do not.
    std::set<std::string> lost;
    for (auto const& namings : directory.unsynced_names) {
      bool const keeps = random() % 4 < of_four &&
                         std::none_of(namings.begin(), namings.end(), [&](Naming const& naming) {
                           return lost.contains(naming.first);
                         });
      if (keeps) {
        put(names, namings);
      } else {
        for (Naming const& naming : namings) lost.insert(naming.first);
      }
    }
    return names;
  }

  [[nodiscard]] static std::string bytes_found(Entry const& file,
                                               Loss loss,
                                               std::mt19937_64& random) {
    if (loss == Loss::nothing || loss == Loss::names) return file.bytes;
    auto const& writes = file.unsynced_bytes;
    if (loss != Loss::chance || writes.empty()) return file.durable_bytes;
    // Each block is as some of the writes have left it, and so is the size.
    std::size_t const block = random() % 2 == 0 ? 512 : 4096;
    std::size_t longest = file.durable_bytes.size();
    for (Written const& write : writes) longest = std::max(longest, std::size_t{write.size});
    std::vector<std::size_t> kept((longest + block - 1) / block);
    for (std::size_t& writes_kept : kept) writes_kept = random() % (writes.size() + 1);
    std::string found = file.durable_bytes;
    found.resize(longest);
    for (std::size_t i = 0; i < writes.size(); ++i) {
      Written const& write = writes[i];
      bool const truncates = write.bytes.empty();
      std::size_t const end = truncates ? longest : write.offset + write.bytes.size();
      for (std::size_t first = write.offset; first < end;) {
        std::size_t const next = std::min((first / block + 1) * block, end);
        if (i < kept[first / block]) {
          if (truncates) {
            std::fill_n(found.begin() + static_cast<std::ptrdiff_t>(first), next - first, '\0');
          } else {
            found.replace(first, next - first, write.bytes, first - write.offset, next - first);
          }
        }
        first = next;
      }
    }
    std::size_t const sized = random() % (writes.size() + 1);
    found.resize(sized == 0 ? file.durable_bytes.size() : writes[sized - 1].size);
    return found;
  }

  std::vector<Entry> nodes_;
};

/// The operations on a ModelDisk. Copies share it, as the processes of a machine do.
class ModelFiles final : public zero::FileOperations {
 public:
  ModelFiles() : ModelFiles(ModelDisk()) {}

  /// Places to crash at: behind so many changes, none included.
  [[nodiscard]] std::size_t changes() const {
    std::lock_guard const lock(state_->mutex);
    return state_->changes.size();
  }
  /// Change number `i`, in words.
  [[nodiscard]] std::string change(std::size_t i) const {
    std::lock_guard const lock(state_->mutex);
    return state_->changes[i].text;
  }
  /// What is found after a crash behind so many changes: a file system of its own, with nobody's
  /// handles and locks. Another seed is another state, of which the first four lose all or nothing.
  [[nodiscard]] ModelFiles crashed(std::size_t changes, std::uint64_t seed) const {
    std::lock_guard const lock(state_->mutex);
    ModelDisk disk = state_->first;
    for (std::size_t i = 0; i < changes; ++i) state_->changes[i].apply(disk);
    std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + changes);
    auto const chance = static_cast<std::uint64_t>(Loss::chance);
    return ModelFiles(disk.crashed(static_cast<Loss>(std::min(seed, chance)), random));
  }
  /// Forgets the changes so far: the places to crash at begin here, and all is durable.
  void settle() {
    std::lock_guard const lock(state_->mutex);
    std::mt19937_64 random;
    state_->disk = state_->first = state_->disk.crashed(Loss::nothing, random);
    state_->changes.clear();
  }

  FileAnswer open(std::string const& path, FileMode mode) override {
    std::lock_guard const lock(state_->mutex);
    if (mode == FileMode::create) {
      FileAnswer const node = state_->create(path);
      return node < 0 ? node : state_->handle({static_cast<std::size_t>(node), path, mode});
    }
    FileAnswer const node = state_->disk.find(path);
    if (node < 0) return node;
    if (state_->disk.is_directory(node)) return -EISDIR;
    return state_->handle({static_cast<std::size_t>(node), path, mode});
  }
  FileAnswer read(FileAnswer file, void* to, std::size_t bytes, std::uint64_t offset) override {
    return with(file, [&](Handle const& handle) -> FileAnswer {
      if (handle.mode != FileMode::read) return -EBADF;
      std::string const& all = state_->disk.bytes(handle.node);
      if (offset >= all.size()) return 0;
      return static_cast<FileAnswer>(all.copy(static_cast<char*>(to), bytes, offset));
    });
  }
  FileAnswer write(FileAnswer file,
                   void const* from,
                   std::size_t bytes,
                   std::uint64_t offset) override {
    return with(file, [&](Handle const& handle) -> FileAnswer {
      if (handle.mode == FileMode::read) return -EBADF;
      if (bytes == 0) return 0;
      std::string const text(static_cast<char const*>(from), bytes);
      state_->change(
          "write " + handle.path + ", " + std::to_string(bytes) + " bytes at " +
              std::to_string(offset),
          [=, node = handle.node](ModelDisk& disk) { return disk.write(node, offset, text); });
      return static_cast<FileAnswer>(bytes);
    });
  }
  FileAnswer size(FileAnswer file) override {
    return with(file, [&](Handle const& handle) {
      return static_cast<FileAnswer>(state_->disk.bytes(handle.node).size());
    });
  }
  FileAnswer sync(FileAnswer file) override {
    return with(file, [&](Handle const& handle) {
      state_->change("sync " + handle.path,
                     [node = handle.node](ModelDisk& disk) { return disk.sync(node); });
      return FileAnswer{0};
    });
  }
  FileAnswer close(FileAnswer file) override {
    std::lock_guard const lock(state_->mutex);
    return state_->handles.erase(file) == 1 ? 0 : -EBADF;
  }
  FileAnswer rename(std::string const& from, std::string const& to) override {
    return apply("rename " + from + " to " + to,
                 [=](ModelDisk& disk) { return disk.rename(from, to); });
  }
  FileAnswer remove(std::string const& path) override {
    return apply("remove " + path, [=](ModelDisk& disk) { return disk.remove(path); });
  }
  FileAnswer make_directory(std::string const& path) override {
    return apply("make_directory " + path,
                 [=](ModelDisk& disk) { return disk.make_directory(path); });
  }
  FileAnswer sync_directory(std::string const& path) override {
    return apply("sync_directory " + path,
                 [=](ModelDisk& disk) { return disk.sync_directory(path); });
  }
  FileAnswer list(std::string const& path, std::vector<std::string>& names) override {
    std::lock_guard const lock(state_->mutex);
    FileAnswer const node = state_->disk.find(path);
    if (node < 0) return node;
    if (!state_->disk.is_directory(node)) return -ENOTDIR;
    names.clear();
    for (auto const& [name, other] : state_->disk.names(node)) names.push_back(name);
    return static_cast<FileAnswer>(names.size());
  }
  FileAnswer kind(std::string const& path) override {
    std::lock_guard const lock(state_->mutex);
    FileAnswer const node = state_->disk.find(path);
    if (node < 0) return node;
    return static_cast<FileAnswer>(state_->disk.is_directory(node) ? zero::FileKind::directory
                                                                   : zero::FileKind::file);
  }
  FileAnswer lock(std::string const& path) override {
    std::lock_guard const guard(state_->mutex);
    FileAnswer node = state_->disk.find(path);
    if (node == -ENOENT) node = state_->create(path);
    if (node < 0) return node;
    if (state_->disk.is_directory(node)) return -EISDIR;
    auto const has_it = static_cast<std::size_t>(node);
    for (auto const& [number, handle] : state_->handles) {
      if (handle.locks && handle.node == has_it) return -EAGAIN;
    }
    return state_->handle({has_it, path, FileMode::write, true});
  }

 private:
  struct Handle {
    std::size_t node = 0;
    std::string path{};
    FileMode mode = FileMode::read;
    bool locks = false;
  };
  struct Change {
    std::string text{};
    std::function<FileAnswer(ModelDisk&)> apply{};
  };
  struct State {
    explicit State(ModelDisk const& found) : first(found), disk(found) {}
    /// Records it if it succeeds.
    FileAnswer change(std::string text, std::function<FileAnswer(ModelDisk&)> apply) {
      FileAnswer const node = apply(disk);
      if (node >= 0) changes.push_back({std::move(text), std::move(apply)});
      return node;
    }
    FileAnswer create(std::string const& path) {
      return change("open " + path, [path](ModelDisk& of) { return of.create(path); });
    }
    FileAnswer handle(Handle opened) {
      handles.emplace(++last, std::move(opened));
      return last;
    }

    std::mutex mutex{};
    ModelDisk first;  ///< before the changes
    ModelDisk disk;
    std::vector<Change> changes{};
    std::map<FileAnswer, Handle> handles{};
    FileAnswer last = 0;
  };

  explicit ModelFiles(ModelDisk const& disk) : state_(std::make_shared<State>(disk)) {}
  /// What `operation(handle)` answers, if there is one of this number.
  template <class Operation>
  FileAnswer with(FileAnswer file, Operation const& operation) {
    std::lock_guard const lock(state_->mutex);
    auto const found = state_->handles.find(file);
    return found == state_->handles.end() ? -EBADF : operation(found->second);
  }
  FileAnswer apply(std::string text, std::function<FileAnswer(ModelDisk&)> change) {
    std::lock_guard const lock(state_->mutex);
    return std::min<FileAnswer>(state_->change(std::move(text), std::move(change)), 0);
  }

  std::shared_ptr<State> state_;
};

inline std::string read_all(ModelFiles& files, std::string const& path) {
  FileAnswer const file = files.open(path, FileMode::read);
  if (file < 0) return "error " + std::to_string(-file);
  std::string bytes(static_cast<std::size_t>(files.size(file)), '\0');
  files.read(file, bytes.data(), bytes.size(), 0);
  files.close(file);
  return bytes;
}
inline void write_all(ModelFiles& files, std::string const& path, std::string const& bytes) {
  FileAnswer const file = files.open(path, FileMode::create);
  files.write(file, bytes.data(), bytes.size(), 0);
  files.close(file);
}

}  // namespace checkpoint_tests
