// The user who is logged in, and the pages that this user may see.

const ABOVE = {
  management: ["management", "policymaker", "monitoring", "administrator"],
  policymaker: ["policymaker", "administrator"],
  monitoring: ["monitoring", "administrator"],
  administrator: ["administrator"],
};

export const user = {name: "", tags: [], node: "", clustered: false};

export function become(told) {
  Object.assign(user, told);
}

export function may(tag) {
  return ABOVE[tag].some((each) => user.tags.includes(each));
}
