// SPDX-License-Identifier: Apache-2.0
#include "interpose/objects.h"

#include <string.h>

#include <atomic>

namespace gcr {
namespace interpose {
namespace {

struct Driver {
    std::atomic<uintptr_t> start, end;
};
Driver drivers[hooks::kLibraries];

struct Walk {
    bool (*visit)(const Object&, void*);
    void* context;
};

Object describe(const dl_phdr_info& info) {
    Object object{info.dlpi_addr, UINTPTR_MAX, 0, info.dlpi_name != nullptr ? info.dlpi_name : "", nullptr};
    for (int i = 0; i < info.dlpi_phnum; ++i) {
        const ElfW(Phdr) & header = info.dlpi_phdr[i];
        uintptr_t address = info.dlpi_addr + header.p_vaddr;
        if (header.p_type == PT_DYNAMIC) object.dynamic = reinterpret_cast<const ElfW(Dyn)*>(address);
        if (header.p_type != PT_LOAD) continue;
        if (address < object.start) object.start = address;
        if (address + header.p_memsz > object.end) object.end = address + header.p_memsz;
    }
    return object;
}

int step(dl_phdr_info* info, size_t, void* data) {
    auto* walk = static_cast<Walk*>(data);
    return walk->visit(describe(*info), walk->context) ? 1 : 0;
}

struct Symbols {
    const ElfW(Sym) * table;
    const char* strings;
    const ElfW(Half) * versions;  // null: the object has none
    const char* name;
};

bool matches(const Symbols& in, uint32_t index) {
    const ElfW(Sym) & symbol = in.table[index];
    return symbol.st_shndx != SHN_UNDEF && strcmp(in.strings + symbol.st_name, in.name) == 0;
}

bool hidden(const Symbols& in, uint32_t index) {
    return in.versions != nullptr && (in.versions[index] & 0x8000) != 0;
}

// The better of two definitions: a default version, else any.
uint32_t better(const Symbols& in, uint32_t before, uint32_t index) {
    return before == STN_UNDEF || hidden(in, before) ? index : before;
}

uint32_t search_gnu(const uint32_t* hash, const Symbols& in) {
    uint32_t value = 5381;
    for (const char* at = in.name; *at != 0; ++at) value = value * 33 + static_cast<unsigned char>(*at);
    uint32_t buckets = hash[0], first = hash[1], words = hash[2], shift = hash[3];
    if (buckets == 0 || words == 0) return STN_UNDEF;
    auto* bloom = reinterpret_cast<const ElfW(Addr)*>(hash + 4);
    constexpr uint32_t kBits = sizeof(ElfW(Addr)) * 8;
    ElfW(Addr) mask = (ElfW(Addr){1} << (value % kBits)) | (ElfW(Addr){1} << ((value >> shift) % kBits));
    if ((bloom[(value / kBits) % words] & mask) != mask) return STN_UNDEF;
    auto* bucket = reinterpret_cast<const uint32_t*>(bloom + words);
    const uint32_t* chain = bucket + buckets;
    uint32_t found = STN_UNDEF;
    uint32_t index = bucket[value % buckets];
    for (bool more = index >= first; more; ++index) {
        uint32_t here = chain[index - first];
        if ((here | 1) == (value | 1) && matches(in, index)) found = better(in, found, index);
        more = (here & 1) == 0;
    }
    return found;
}

uint32_t search_sysv(const uint32_t* hash, const Symbols& in) {
    uint32_t count = hash[1];  // entries of the symbol table
    uint32_t found = STN_UNDEF;
    for (uint32_t index = 1; index < count; ++index)
        if (matches(in, index)) found = better(in, found, index);
    return found;
}

bool symbols_of(const Object& object, const char* name, Symbols* in) {
    in->table = reinterpret_cast<const ElfW(Sym)*>(entry(object, DT_SYMTAB));
    in->strings = reinterpret_cast<const char*>(entry(object, DT_STRTAB));
    in->versions = reinterpret_cast<const ElfW(Half)*>(entry(object, DT_VERSYM));
    in->name = name;
    return in->table != nullptr && in->strings != nullptr;
}

uint32_t search(const Object& object, const Symbols& in) {
    if (uintptr_t gnu = entry(object, DT_GNU_HASH)) return search_gnu(reinterpret_cast<const uint32_t*>(gnu), in);
    if (uintptr_t sysv = entry(object, DT_HASH)) return search_sysv(reinterpret_cast<const uint32_t*>(sysv), in);
    return STN_UNDEF;
}

struct Containing {
    uintptr_t address;
    Object found;
};

bool contains(const Object& object, void* context) {
    auto* wanted = static_cast<Containing*>(context);
    if (wanted->address < object.start || wanted->address >= object.end) return false;
    wanted->found = object;
    return true;
}

}  // namespace

extern "C" {
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));
}

bool each_object(bool (*visit)(const Object&, void*), void* context) {
    Walk walk{visit, context};
    return dl_iterate_phdr(step, &walk) != 0;
}

bool object_of(const void* address, Object* found) {
    Containing wanted{reinterpret_cast<uintptr_t>(address), {}};
    if (!each_object(contains, &wanted)) return false;
    *found = wanted.found;
    return true;
}

// glibc relocates d_ptr in place, except where the dynamic section is read-only (the vdso).
uintptr_t entry(const Object& object, ElfW(Sxword) tag) {
    if (object.dynamic == nullptr) return 0;
    for (const ElfW(Dyn)* at = object.dynamic; at->d_tag != DT_NULL; ++at)
        if (at->d_tag == tag) return at->d_un.d_ptr < object.base ? at->d_un.d_ptr + object.base : at->d_un.d_ptr;
    return 0;
}

uint64_t number(const Object& object, ElfW(Sxword) tag) {
    for (const ElfW(Dyn)* at = object.dynamic; at != nullptr && at->d_tag != DT_NULL; ++at)
        if (at->d_tag == tag) return at->d_un.d_val;
    return 0;
}

bool defines(const Object& object, const char* symbol) {
    Symbols in;
    return symbols_of(object, symbol, &in) && search(object, in) != STN_UNDEF;
}

const void* address_in(const Object& object, const char* symbol) {
    Symbols in;
    if (!symbols_of(object, symbol, &in)) return nullptr;
    uint32_t index = search(object, in);
    return index == STN_UNDEF ? nullptr : reinterpret_cast<const void*>(object.base + in.table[index].st_value);
}

const char* soname(const Object& object) {
    Symbols in;
    if (!symbols_of(object, "", &in)) return "";
    for (const ElfW(Dyn)* at = object.dynamic; at->d_tag != DT_NULL; ++at)
        if (at->d_tag == DT_SONAME) return in.strings + at->d_un.d_val;
    return "";
}

bool is_name_of(const hooks::Library& library, const char* name) {
    for (const char* file : library.files)
        if (file != nullptr && strncmp(name, file, strlen(file)) == 0) return true;
    return false;
}

// A program may have opened it by a link or a copy of another name: what it calls itself stays.
bool is_of(const hooks::Library& library, const Object& object) {
    const char* slash = strrchr(object.name, '/');
    return is_name_of(library, slash != nullptr ? slash + 1 : object.name) || is_name_of(library, soname(object));
}

bool is_driver(const Object& object) {
    for (const hooks::Library& library : hooks::libraries)
        if (is_of(library, object)) return true;
    return false;
}

bool in_driver(const void* address) {
    Object object;
    return in_remembered_driver(address) || (object_of(address, &object) && is_driver(object));
}

void remember_driver(const hooks::Library& library, const Object& object) {
    Driver& driver = drivers[&library - hooks::libraries];
    driver.start.store(object.start, std::memory_order_relaxed);
    driver.end.store(object.end,
                     std::memory_order_release);  // pairs with in_remembered_driver: start is there before end
}

bool in_remembered_driver(const void* address) {
    auto at = reinterpret_cast<uintptr_t>(address);
    for (const Driver& driver : drivers)
        if (at < driver.end.load(std::memory_order_acquire) && at >= driver.start.load(std::memory_order_relaxed))
            return true;
    return false;
}

bool is_ours(const void* address) {
    auto* at = static_cast<const char*>(address);
    return at >= __ehdr_start && at < _end;
}

}  // namespace interpose
}  // namespace gcr
