#include "store_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "error.h"
#include "json.h"
#include "sha256.h"
#include "text.h"
#include "value.h"

namespace cudnn_aot {
namespace {

constexpr int64_t kFormat = 1;
constexpr char kStoreFile[] = "store.json";
constexpr size_t kMaxNameBytes = 240;  // a file name has 255, and ".json" must fit
constexpr std::string_view kJson = ".json";

// What an error says of something that is no file of a store, whoever asks; null for others.
const char* WhyNoFile(int error) {
  switch (error) {
    case ELOOP:
      return "it is a symbolic link";
    case EISDIR:
    case EINVAL:
    case ENXIO:  // a socket
      return "it is not a regular file";
    case ENOTDIR:
      return "what should be its folder is none, or a link to one";
    case EBADMSG:  // of an entry of a pack
      return "the bytes after it are not zero";
    default:
      return nullptr;
  }
}

// ---- Names ----------------------------------------------------------------------------------

// A graph or target name as one file name: percent-encoded, never hidden, never a path.
std::string Percent(const std::string& name) {
  constexpr std::string_view kPlain = "_.-~ +,=@()[]";
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (char c : name) {
    auto byte = static_cast<unsigned char>(c);
    bool is_hidden = c == '.' && out.empty();
    if (byte < 0x80 && !is_hidden && (std::isalnum(byte) || kPlain.find(c) != kPlain.npos)) {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

bool IsFileName(const std::string& coded) {
  return !coded.empty() && coded.size() <= kMaxNameBytes;
}

std::string EncodeName(const std::string& what, const std::string& name) {
  std::string coded = Percent(name);
  if (IsFileName(coded)) return coded;
  throw StoreFailure(Code::kUsage, "bad " + what + " " + Quoted(name) + ": got " +
                                       std::to_string(coded.size()) + " bytes, want 1 to " +
                                       std::to_string(kMaxNameBytes));
}

// The name behind a file name; false when no name is written this way.
bool DecodeName(const std::string& coded, std::string* out) {
  out->clear();
  for (size_t i = 0; i < coded.size(); ++i) {
    bool is_code = coded[i] == '%' && i + 2 < coded.size() && std::isxdigit(coded[i + 1]) &&
                   std::isxdigit(coded[i + 2]);
    *out += is_code ? static_cast<char>(std::stoi(coded.substr(i + 1, 2), nullptr, 16)) : coded[i];
    if (is_code) i += 2;
  }
  return IsUtf8(*out) && IsFileName(coded) && Percent(*out) == coded;
}

const std::string& NeedDigest(const char* what, const std::string& text) {
  if (IsDigest(text)) return text;
  throw StoreFailure(Code::kUsage,
                     std::string("bad ") + what + ": got " + Quoted(text) + ", want 64 hex digits");
}

std::string BlobPath(const std::string& digest) {
  NeedDigest("blob digest", digest);
  return "blobs/sha256/" + digest.substr(0, 2) + "/" + digest;
}

std::string PointerPath(const std::string& target, const std::string& graph_key) {
  return "plans/" + EncodeName("target", target) + "/" + NeedDigest("graph key", graph_key) +
         ".json";
}

std::string NamePath(const std::string& target, const std::string& name) {
  return "names/" + EncodeName("target", target) + "/" + EncodeName("graph name", name) + ".json";
}

// Whether a file is a document, of what name.
bool IsDocument(const std::string& file, std::string* stem) {
  if (file.size() < kJson.size()) return false;
  size_t end = file.size() - kJson.size();
  *stem = file.substr(0, end);
  return file.compare(end, kJson.size(), kJson) == 0;
}

bool IsPointerFile(const std::string& file) {
  std::string stem;
  return IsDocument(file, &stem) && IsDigest(stem);
}

bool IsNameFile(const std::string& file, std::string* name) {
  std::string stem;
  return IsDocument(file, &stem) && DecodeName(stem, name);
}

// Whether a file two folders down, `kind` being the first, is a document of the store.
bool IsDocumentPath(std::string_view kind, const std::string& folder, const std::string& file) {
  std::string stem, name;
  if (!IsDocument(file, &stem)) return false;
  if (kind == "kernels") return IsDigest(stem) && stem.substr(0, 2) == folder;
  if (!DecodeName(folder, &name)) return false;
  return kind == "names" ? DecodeName(stem, &name) : IsDigest(stem);
}

// ---- Documents ------------------------------------------------------------------------------

std::string ShownNumber(const Value* value) {
  return value == nullptr                      ? "None"
         : value->kind == Value::Kind::kString ? Quoted(value->string)
                                               : CanonicalJson(*value);
}

// The document, seal checked; `fault` says what is wrong.
bool ParseDocument(const std::string& data, Value* out, std::string* fault) {
  try {
    *out = ParseJson(data);
  } catch (const JsonError&) {
    *fault = "not JSON";
    return false;
  }
  if (out->kind != Value::Kind::kObject) {
    *fault = "not a JSON object";
    return false;
  }
  const Value* version = out->Find("format");
  bool is_number = version != nullptr && version->kind == Value::Kind::kInt;
  if (is_number && version->integer > kFormat) {
    *fault = "format " + std::to_string(version->integer) + " is newer than " +
             std::to_string(kFormat) + ", which this version reads";
    return false;
  }
  const Value* digest = out->Find("digest");
  bool is_sealed = digest != nullptr && CanonicalJson(*out) + "\n" == data &&
                   Sha256Hex(CanonicalJson(*out, "digest")) == digest->string;
  if (!is_sealed) {
    *fault = "the content does not match its digest";
  } else if (!is_number || version->integer != kFormat) {
    *fault = "format is " + ShownNumber(version) + ", want " + std::to_string(kFormat);
  }
  return fault->empty();
}

bool States(const Value& document, const char* field, const std::string& text) {
  const Value* found = document.Find(field);
  return found != nullptr && found->kind == Value::Kind::kString && found->string == text;
}

void NeedDigests(const Reader& list) {
  for (const Reader& digest : list.Items()) {
    if (!IsDigest(digest.String())) {
      digest.Fail("got " + Quoted(digest.String()) + ", want 64 hex digits");
    }
  }
}

// The fields of a pointer that loading reads, as `cache.shapes` has them; throws TableError.
void CheckPointer(const Value& document) {
  Reader pointer(document, "");
  pointer.Field("status").String();
  NeedDigests(pointer.Field("records"));
  for (const Reader& reason : pointer.Field("reasons").Items()) reason.String();
  if (!pointer.Has("providers")) return;  // of before there were several
  for (const auto& [name, part] : pointer.Field("providers").Members()) {
    NeedDigests(part.Field("records"));
    for (const Reader& reason : part.Field("reasons").Items()) reason.String();
  }
}

void CheckName(const Value& document) {
  Reader entry(document, "");
  Reader key = entry.Field("graph_key");
  if (!IsDigest(key.String())) key.Fail("got " + Quoted(key.String()) + ", want 64 hex digits");
  for (const auto& [name, uid] : entry.Field("uids").Members()) uid.Int();
}

std::string RootOf(const std::map<std::string, std::string>& documents) {
  std::string lines;
  for (const auto& [path, digest] : documents) lines += digest + "  " + path + "\n";
  return Sha256Hex(lines);
}

[[noreturn]] void NotAStore(const std::string& message) {
  throw StoreFailure(Code::kNotAStore, message);
}

void CheckFormat(const std::string& path, const StoreFiles& files) {
  std::string file = path + "/" + kStoreFile;
  std::string data;
  int error = files.Read(kStoreFile, &data);
  struct stat status;
  if (error == ENOENT || error == ENOTDIR) {
    if (stat(path.c_str(), &status) != 0) {
      NotAStore("no store at " + Quoted(path) + ": there is no such folder, want one that " +
                "`cudnn-aot build --store` made");
    }
    NotAStore(Quoted(path) + " is not a store: it has no " + kStoreFile);
  }
  if (error != 0) {
    const char* reason = error == EINVAL ? WhyNoFile(error) : std::strerror(error);
    NotAStore("cannot read " + Quoted(file) + ": " + reason);
  }
  std::string what = Quoted(path) + " is not a store: " + kStoreFile;
  Value document;
  try {
    document = ParseJson(data);
  } catch (const JsonError&) {
    NotAStore(what + " is no JSON");
  }
  const Value* version = document.Find("format");
  if (version == nullptr || version->kind != Value::Kind::kInt || version->integer < 1) {
    NotAStore(what + " states no format number");
  }
  if (version->integer > kFormat) {
    NotAStore("store " + Quoted(path) + " has format " + std::to_string(version->integer) +
              ", this version of cudnn-aot reads format " + std::to_string(kFormat) +
              ": update cudnn-aot");
  }
  if (CanonicalJson(document) + "\n" != data) {
    throw StoreFailure(Code::kDamaged,
                       file + " is damaged: it is not in the form in which it was written");
  }
}

}  // namespace

bool IsDigest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

std::string TidyPath(const std::string& path) {
  std::string out;
  for (size_t at = 0; at < path.size();) {
    size_t end = std::min(path.find('/', at), path.size());
    std::string part = path.substr(at, end - at);
    if (!part.empty() && part != ".") out += (out.empty() && path[0] != '/' ? "" : "/") + part;
    at = end + 1;
  }
  if (!out.empty()) return out;
  return path[0] == '/' ? "/" : ".";
}

StoreReader::StoreReader(const std::string& path, const std::string& digest, std::string whole)
    : path_(TidyPath(path)), whole_(std::move(whole)), files_(OpenStoreFiles(path_)), pin_(digest) {
  CheckFormat(path_, *files_);
  if (pin_.empty()) return;
  NeedDigest("root digest", pin_);
  pinned_ = HashDocuments();
  std::string got = RootOf(pinned_);
  if (got != pin_) {
    throw StoreFailure(Code::kPin, "store " + Quoted(path_) +
                                       " is not the pinned one: got root digest " + got +
                                       ", want " + pin_);
  }
}

std::string StoreReader::RootDigest() const { return RootOf(HashDocuments()); }

// The SHA-256 of each document's bytes, by its path; they are compared with nothing.
std::map<std::string, std::string> StoreReader::HashDocuments() const {
  std::map<std::string, std::string> out;
  auto hash = [&](const std::string& path) {
    out[path] = Sha256Hex(Read(path, "file " + Quoted(path)));
  };
  Visit("builds", [&](const std::string& file) {  // the one folder of documents without folders
    std::string stem;
    if (IsDocument(file, &stem) && IsDigest(stem)) hash("builds/" + file);
    return true;
  });
  for (const char* kind : {"classes", "kernels", "names", "plans"}) {
    Visit(kind, [&](const std::string& folder) {
      std::string relative = std::string(kind) + "/" + folder;
      Visit(relative, [&](const std::string& file) {
        if (IsDocumentPath(kind, folder, file)) hash(relative + "/" + file);
        return true;
      });
      return true;
    });
  }
  return out;
}

void StoreReader::Damaged(const std::string& relative, const std::string& what) const {
  throw StoreFailure(Code::kDamaged, path_ + "/" + relative + " is damaged: " + what);
}

std::string StoreReader::Read(const std::string& relative, const std::string& what) const {
  std::string data;
  int error = files_->Read(relative, &data);
  if (error == 0) return data;
  if (error == ENOENT) {
    throw StoreFailure(Code::kNotInStore, what + " is not in the store " + Quoted(whole_));
  }
  if (const char* reason = WhyNoFile(error)) Damaged(relative, reason);
  std::string reason = std::strerror(error);
  std::transform(reason.begin(), reason.end(), reason.begin(),
                 [](char c) { return std::tolower(c); });
  throw StoreFailure(Code::kStore, "cannot read " + Quoted(path_ + "/" + relative) + ": " + reason);
}

// That a document, null for one that is not there, is what was hashed when the store was opened.
void StoreReader::CheckPinned(const std::string& relative, const std::string* data) const {
  if (pin_.empty()) return;
  auto found = pinned_.find(relative);
  const char* change = nullptr;
  if (data == nullptr) {
    if (found != pinned_.end()) change = "it was removed";
  } else if (found == pinned_.end()) {
    change = "it was added";
  } else if (Sha256Hex(*data) != found->second) {
    change = "it was changed";
  }
  if (change == nullptr) return;
  throw StoreFailure(Code::kPin, path_ + "/" + relative + " is not what was pinned: " + change +
                                     " after the store was opened; open it anew");
}

Value StoreReader::Document(const std::string& relative, const std::string& what) const {
  std::string data, fault;
  try {
    data = Read(relative, what);
  } catch (const StoreFailure& failure) {
    if (failure.code == Code::kNotInStore) CheckPinned(relative, nullptr);
    throw;
  }
  CheckPinned(relative, &data);
  Value out;
  if (!ParseDocument(data, &out, &fault)) Damaged(relative, fault);
  return out;
}

void StoreReader::NeedShape(const std::string& relative, const Value& document,
                            void (*check)(const Value&)) const {
  try {
    check(document);
  } catch (const TableError& error) {
    Damaged(relative, error.what());
  }
}

std::string StoreReader::Blob(const std::string& digest) const {
  std::string relative = BlobPath(digest);
  std::string data = Read(relative, "blob " + digest);
  std::string got = Sha256Hex(data);
  if (got != digest) Damaged(relative, "its bytes hash to " + got);
  return data;
}

Value StoreReader::Pointer(const std::string& target, const std::string& graph_key) const {
  std::string relative = PointerPath(target, graph_key);
  Value out = Document(relative, "plan of graph " + graph_key + " for target " + Quoted(target));
  if (!States(out, "target", target) || !States(out, "graph_key", graph_key)) {
    Damaged(relative, "it belongs to another target or graph");
  }
  NeedShape(relative, out, CheckPointer);
  return out;
}

Value StoreReader::Name(const std::string& target, const std::string& name) const {
  std::string relative = NamePath(target, name);
  Value out = Document(relative, "graph named " + Quoted(name) + " for target " + Quoted(target));
  if (!States(out, "name", name)) {
    Damaged(relative, "it belongs to the name " + ShownNumber(out.Find("name")));
  }
  NeedShape(relative, out, CheckName);
  return out;
}

// Hands out the entries of a folder of the store, none if it is none, until `visit` returns false.
void StoreReader::Visit(const std::string& relative,
                        const std::function<bool(const std::string&)>& visit) const {
  if (int error = files_->List(relative, visit)) {
    throw StoreFailure(Code::kStore,
                       "cannot list " + path_ + "/" + relative + ": " + std::strerror(error));
  }
}

std::vector<std::pair<std::string, std::string>> StoreReader::Names() const {
  std::vector<std::pair<std::string, std::string>> out;
  Visit("names", [&](const std::string& coded) {
    std::string target;
    if (!DecodeName(coded, &target)) return true;
    Visit("names/" + coded, [&](const std::string& file) {
      std::string name;
      if (IsNameFile(file, &name)) out.emplace_back(target, name);
      return true;
    });
    return true;
  });
  std::sort(out.begin(), out.end());
  return out;
}

// The targets that have a folder, sorted.
std::vector<std::string> StoreReader::Folders() const {
  std::set<std::string> found;
  for (const char* kind : {"plans", "names"}) {
    Visit(kind, [&](const std::string& coded) {
      std::string target;
      if (DecodeName(coded, &target)) found.insert(target);
      return true;
    });
  }
  return {found.begin(), found.end()};
}

std::vector<std::string> StoreReader::Targets() const {
  std::vector<std::string> out;
  for (const std::string& target : Folders()) {
    if (HasTarget(target)) out.push_back(target);
  }
  return out;
}

bool StoreReader::HasTarget(const std::string& target) const {
  std::string coded = Percent(target);
  if (!IsFileName(coded) || !IsUtf8(target)) return false;
  bool found = false;
  Visit("plans/" + coded, [&](const std::string& file) { return !(found = IsPointerFile(file)); });
  if (found) return true;
  Visit("names/" + coded, [&](const std::string& file) {
    std::string name;
    return !(found = IsNameFile(file, &name));
  });
  return found;
}

bool StoreReader::Holds(const std::string& target, const std::string& name) const {
  std::string file = IsDigest(name) ? PointerPath(target, name) : NamePath(target, name);
  return files_->Has(file);
}

std::vector<std::string> StoreReader::Holders(const std::string& name) const {
  std::vector<std::string> out;
  if (!IsDigest(name) && (!IsFileName(Percent(name)) || !IsUtf8(name))) return out;
  for (const std::string& target : Folders()) {
    if (Holds(target, name)) out.push_back(target);
  }
  return out;
}

}  // namespace cudnn_aot
